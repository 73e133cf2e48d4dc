"""The process: one listening socket, one loop, and an end that loses nothing."""

import gc
import logging
import signal
from types import FrameType

import uvicorn

from proxy.app import App

# A turn's values die young; what lives longer is the program itself, and need not be looked at again.
_COLLECT_AFTER = (50_000, 50, 100)


def uvicorn_config(app: App, *, host: str, port: int) -> uvicorn.Config:
    """How uvicorn serves us: its fastest parts, and no log line per request."""
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        http="httptools",
        ws="none",
        lifespan="on",
        access_log=False,
        log_level="warning",
        server_header=False,
        backlog=2048,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=30,
    )


class Server(uvicorn.Server):
    """A uvicorn server that says when it is going away."""

    def __init__(self, config: uvicorn.Config, app: App) -> None:
        super().__init__(config)
        self._app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM and SIGINT: no new calls; those in flight may end."""
        self._app.drain()
        super().handle_exit(sig, frame)


def serve(app: App, *, host: str, port: int) -> None:
    """Serves until SIGTERM or SIGINT, and then returns."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    # uvicorn raises the signal again when it is done; having ended well is no failure.
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: None)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
    Server(uvicorn_config(app, host=host, port=port), app).run()

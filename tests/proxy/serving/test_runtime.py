"""How a process is set up before callers come."""

import platform
import subprocess
import sys
import textwrap

import pytest

_HEAPS = textwrap.dedent(
    """
    import ctypes, threading
    from proxy.serving import runtime

    runtime.prepare()
    threads = [threading.Thread(target=bytes, args=(100_000,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    libc = ctypes.CDLL(None)
    libc.fdopen.restype = ctypes.c_void_p
    told = ctypes.c_void_p(libc.fdopen(1, b"w"))
    libc.malloc_info(0, told)
    libc.fflush(told)
    """
)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="heaps of threads are glibc's")
def test_all_threads_take_memory_from_one_heap() -> None:
    told = subprocess.run([sys.executable, "-c", _HEAPS], capture_output=True, text=True, check=True).stdout
    assert told.count("<heap nr=") == 1

// What a page gains where scripts run: local times, turns as they happen, and a playground that answers while one types.
// Whatever is put into a page was escaped by the server's templates.
"use strict";

const CLOCK = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
const HOUR = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
const DAY = { year: "numeric", month: "short", day: "numeric" };

function localise(root) {
  const now = new Date().toDateString();
  for (const time of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.valueOf()) || time.dataset.local) continue;
    time.dataset.local = "yes";
    if (time.dataset.form === "hour") {
      time.textContent = moment.toLocaleTimeString([], HOUR);
      continue;
    }
    const today = moment.toDateString() === now;
    const clock = moment.toLocaleTimeString([], CLOCK);
    time.textContent = today ? clock : `${moment.toLocaleDateString([], DAY)} ${clock}`;
  }
}

function rowOf(html) {
  const template = document.createElement("template");
  template.innerHTML = html.trim();
  return template.content.firstElementChild;
}

function mend(row, fresh) {
  // Only what differs is replaced, so that a link that has the focus keeps it.
  [...fresh.cells].forEach((cell, i) => {
    if (!cell.isEqualNode(row.cells[i])) row.cells[i].replaceWith(cell);
  });
}

// The table as the server has it: all of its rows by their ids, in order, and those that are new or changed.
function show(body, { ids, rows }) {
  const there = new Map([...body.rows].map((row) => [row.dataset.turn, row]));
  for (const [id, row] of there) if (!ids.includes(id)) row.remove();
  ids.forEach((id, i) => {
    let row = there.get(id);
    const fresh = id in rows ? rowOf(rows[id]) : null;
    if (fresh) localise(fresh);
    if (row && fresh) mend(row, fresh);
    if (!row) {
      row = fresh;
      row.classList.add("new");
    }
    if (body.rows[i] !== row) body.insertBefore(row, body.rows[i] ?? null);
  });
}

// While rows are held, those that are there change in place or go, and new ones wait.
function split(body, { ids, rows }, waiting) {
  const there = new Set([...body.rows].map((row) => row.dataset.turn));
  const all = { ...waiting?.rows, ...rows };
  const shown = ids.filter((id) => there.has(id));
  const later = ids.filter((id) => !there.has(id));
  return [{ ids: shown, rows }, later.length ? { ids, rows: Object.fromEntries(later.map((id) => [id, all[id]])) } : null];
}

function live(link) {
  const body = document.querySelector("#turns tbody");
  const form = document.querySelector("#filters");
  const pause = document.querySelector("#pause");
  let waiting = null;
  let over = false;
  let connected = false;
  let source = null;
  let typing = 0;

  function status() {
    const count = waiting ? waiting.ids.length - body.rows.length : 0;
    const paused = pause.ariaPressed === "true";
    const state = !connected ? "The server does not answer; trying again …" : paused ? "Paused" : "Connected";
    link.textContent = count ? `${state} · ${count} newer` : state;
    const filtered = [...new FormData(form).values()].some(Boolean);
    document.querySelector("#empty").hidden = body.rows.length > 0 || filtered;
    document.querySelector("#none").hidden = body.rows.length > 0 || !filtered;
  }

  function release() {
    if (waiting) show(body, waiting);
    waiting = null;
    status();
  }

  function connect() {
    source?.close();
    waiting = null;
    source = new EventSource(`${link.dataset.live}?${new URLSearchParams(new FormData(form))}`);
    source.addEventListener("open", () => { connected = true; status(); });
    source.addEventListener("error", () => { connected = false; status(); });
    source.addEventListener("turns", (event) => {
      let news = JSON.parse(event.data);
      if (over || pause.ariaPressed === "true") [news, waiting] = split(body, news, waiting);
      else release();
      show(body, news);
      status();
    });
  }

  document.querySelector("#filter").hidden = true;
  pause.hidden = false;
  pause.addEventListener("click", () => {
    const paused = pause.ariaPressed !== "true";
    pause.ariaPressed = String(paused);
    pause.textContent = paused ? "Resume" : "Pause";
    if (!paused) release(); else status();
  });
  body.addEventListener("pointerenter", (event) => { over = event.pointerType === "mouse"; });
  body.addEventListener("pointerleave", () => {
    over = false;
    if (pause.ariaPressed !== "true") release();
  });
  form.addEventListener("submit", (event) => { event.preventDefault(); filter(); });
  form.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(filter, 250); });

  function filter() {
    const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
    history.replaceState(null, "", `/live${query.size ? "?" : ""}${query}`);
    connect();
  }

  connect();
  window.addEventListener("pagehide", () => source.close());
}

function playground(form) {
  const typing = document.querySelector("#typing");
  const result = document.querySelector("#tried");
  let waiting = 0;
  let asked = null;

  async function ask() {
    asked?.abort();
    asked = new AbortController();
    typing.textContent = "Running …";
    try {
      const answer = await fetch(form.action, {
        method: "POST",
        headers: { "x-part": "tried" },
        body: new URLSearchParams(new FormData(form)),
        signal: asked.signal,
        redirect: "error",
      });
      if (!answer.ok && ![429, 503].includes(answer.status)) throw new Error(String(answer.status));
      result.innerHTML = await answer.text();
      localise(result);
      typing.textContent = result.querySelector(".fault") ? "There are errors" : "Up to date";
    } catch (error) {
      if (error.name !== "AbortError") typing.textContent = "This could not be run; press Run.";
    }
  }

  form.addEventListener("input", (event) => {
    if (event.target.matches("select")) return;
    clearTimeout(waiting);
    waiting = setTimeout(ask, 350);
  });
  for (const choice of form.querySelectorAll("select")) {
    choice.addEventListener("change", () => form.requestSubmit(form.querySelector("button[name=load]")));
  }
}

function copies(button) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const text = document.getElementById(button.dataset.copy).textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(document.getElementById(button.dataset.copy));
      button.textContent = "Press Ctrl+C";
    }
  });
}

function refresh(part) {
  let last = "";
  setInterval(async () => {
    // What somebody has the focus in, or has marked, is not replaced under their hands.
    if (document.hidden || part.contains(document.activeElement) || !getSelection().isCollapsed) return;
    try {
      const answer = await fetch(part.dataset.again, { headers: { "x-part": "figures" }, redirect: "error" });
      if (!answer.ok) return;
      const text = await answer.text();
      if (text === last) return;
      last = text;
      const scrolled = [...part.querySelectorAll("[tabindex]")].map((each) => [each.scrollLeft, each.scrollTop]);
      part.innerHTML = text;
      // What the address points to is new to the browser, which marks it no more.
      document.getElementById(location.hash.slice(1))?.classList.add("target");
      part.querySelectorAll("[tabindex]").forEach((each, i) => { if (scrolled[i]) [each.scrollLeft, each.scrollTop] = scrolled[i]; });
      localise(part);
    } catch {
      // The figures stay as they are, with the time they were taken at.
    }
  }, Number(part.dataset.seconds) * 1000);
}

localise(document);
const link = document.querySelector("[data-live]");
if (link) live(link);
const form = document.querySelector("#try");
if (form) playground(form);
document.querySelectorAll("[data-copy]").forEach(copies);
const part = document.querySelector("[data-again]");
if (part) refresh(part);

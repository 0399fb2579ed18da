// The frame: which page is shown, who one is, and what is said when the gateway cannot be asked.

import { ask, loadSession, operator, session } from "./api.js";
import { confirmed, token } from "./ask_people.js";
import { h } from "./dom.js";
import { audit } from "./audit.js";
import { bookies } from "./bookies.js";
import { databases } from "./databases.js";
import { jobs } from "./jobs.js";
import { ledgers } from "./ledgers.js";
import { namespaces } from "./namespaces.js";
import { objects } from "./objects.js";
import { overview } from "./overview.js";
import { replication } from "./replication.js";
import { streams } from "./streams.js";

// [name, title, page, for whom it is]. A page fills `main`; what it returns is called when it is left.
const everybody = () => true, administrator = () => session.administrator;
const PAGES = [
  ["overview", "Overview", overview, everybody],
  ["streams", "Streams", streams, everybody],
  ["ledgers", "Ledgers", ledgers, everybody],
  ["databases", "Databases", databases, everybody],
  ["objects", "Objects", objects, everybody],
  ["bookies", "Bookies", bookies, everybody],
  ["replication", "Replication", replication, operator],
  ["namespaces", "Namespaces", namespaces, everybody],
  ["jobs", "Jobs", jobs, administrator],
  ["audit", "Audit", audit, administrator],
];
let leave = () => {};
let shown = 0;

function banner(text) {
  const place = document.getElementById("banner");
  place.hidden = !text;
  place.textContent = text;
}

// Calls `work` now and then while the page is seen. What fails is said, and what is shown stays.
function every(pauseMs, work) {
  let timer, ended = false;
  const round = async () => {
    try {
      if (!document.hidden) await work();
      if (!ended) banner("");
    } catch (error) {
      if (ended) return;
      if (error.status === 401) return logIn();
      banner(error.message);
    }
    if (!ended && pauseMs) timer = setTimeout(round, pauseMs);
  };
  round();
  return () => { ended = true; clearTimeout(timer); };
}

// Asks first, says what came of it, and shows the page anew.
async function act(title, consequence, how, work) {
  const given = await confirmed(title, consequence, how);
  if (!given) return;
  try {
    await work(given);
    show();
  } catch (error) {
    banner(error.message);
  }
}

function frame() {
  const [name] = place();
  document.getElementById("nav").replaceChildren(...PAGES
    .filter(([, , , whom]) => whom())
    .map(([page, title]) => h("a", { href: `#/${page}`, "aria-current": page === name ? "page" : null }, title)));
  const dark = () => document.documentElement.dataset.theme === "dark";
  document.getElementById("who").replaceChildren(
    h("span", {}, session.principal, session.changes ? "" : " (may only read)"),
    session.csrf ? h("button", { onclick: logOut }, "Log out") : "",
    h("button", { onclick: () => { theme(dark() ? "light" : "dark"); }, "aria-label": "Light or dark" }, "◐"));
}

function theme(name) {
  if (name) document.documentElement.dataset.theme = name;
  try { localStorage.setItem("theme", name); } catch { /* it is not kept */ }
}

const place = () => {
  const parts = (location.hash || "#/overview").slice(2).split("?")[0].split("/").map(decodeURIComponent);
  return parts[0] ? parts : ["overview"];
};

function show() {
  const [name, ...rest] = place();
  const page = PAGES.find(([one]) => one === name) ?? PAGES[0];
  leave();
  frame();
  const main = h("main", { id: "main", tabIndex: -1 }, h("p", { class: "soft" }, "Loading."));
  document.getElementById("main").replaceWith(main);
  document.title = `${page[1]} · Buckram console`;
  if (shown++) main.focus();
  leave = page[2](main, rest, { every, act, banner }) ?? (() => {});
}

async function logIn() {
  const given = await token();
  if (!given) return banner("Log in to see the cluster: reload the page.");
  try {
    Object.assign(session, await ask("POST", "/v2/session", { body: { token: given.token } }));
    banner("");
    show();
  } catch (error) {
    banner(error.message);
    logIn();
  }
}

async function logOut() {
  await ask("DELETE", "/v2/session").catch(() => {});
  Object.assign(session, { principal: "", administrator: false, changes: false, csrf: null });
  location.reload();
}

addEventListener("hashchange", show);
try { if (localStorage.getItem("theme")) theme(localStorage.getItem("theme")); } catch { /* the system's is used */ }
loadSession().then(show, (error) => (error.status === 401 ? logIn() : (banner(error.message), setTimeout(() => location.reload(), 5000))));

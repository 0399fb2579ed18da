// The audit trail: who did what.

import { get } from "./api.js";
import { card, h, table, time } from "./dom.js";

// As `buckram audit` shows them: names that others chose turn no line around and look like nothing else.
const shown = (text) => text.replace(/[\p{C}\p{Zl}\p{Zp}\\]/gu, (char) => char === "\\" ? "\\\\" : `\\u{${char.codePointAt(0).toString(16)}}`);

export function audit(main, rest, { every, banner }) {
  const place = h("div", {});
  const form = h("form", { onsubmit: (event) => { event.preventDefault(); look().catch((error) => banner(error.message)); } },
    ["principal", "namespace", "what"].map((name) => h("label", {}, name, h("input", { name }))), h("button", { class: "main" }, "Search"));
  const look = async () => {
    const query = new URLSearchParams([...new FormData(form)].filter(([, text]) => text));
    const found = await get(`/v2/audit?limit=200&${query}`);
    place.replaceChildren(card("", table("Events, the newest first, at most 200", [
      ["When", (row) => time(row.time_us)], ["Who", (row) => shown(row.principal)], ["Action", (row) => shown(row.action)],
      ["Object", (row) => shown(row.what)], ["Result", (row) => h("span", { class: row.result === "done" ? "" : "bad" }, row.result)], ["Detail", (row) => shown(row.detail)],
    ], found.events)));
  };
  main.replaceChildren(h("h1", {}, "Audit trail"), form, place);
  return every(0, look);
}

// Ledgers: who holds which entries, as a picture.

import { ask, get, session, url } from "./api.js";
import { named } from "./bookies.js";
import { bytes, card, h, number, svg, table } from "./dom.js";

export function ledgers(main, [id], page) {
  return id ? one(main, id, page) : all(main, page);
}

function all(main, { every }) {
  let after = null;
  const before = [];
  const show = async () => {
    const found = await get(`/v2/ledgers?limit=50${after === null ? "" : `&after=${after}`}`);
    const go = (to) => { after = to; show(); };
    main.replaceChildren(h("h1", {}, "Ledgers"),
      h("form", { onsubmit: (event) => { event.preventDefault(); location.hash = `#/ledgers/${new FormData(event.target).get("id")}`; } },
        h("label", {}, "Ledger", h("input", { name: "id", inputMode: "numeric", pattern: "[0-9]+", required: true })), h("button", {}, "Show")),
      card("", table("Ledgers by id", [
        ["Ledger", (row) => h("a", { href: `#/ledgers/${row.ledger}` }, row.ledger)],
        ["State", (row) => row.state],
        ["Last entry", (row) => number(row.last_entry), true],
        ["Bytes", (row) => bytes(row.length), true],
        ["Quorum", (row) => (row.ensemble_size ? `${row.ensemble_size}/${row.write_quorum}/${row.ack_quorum}` : "")],
        ["Fragments", (row) => row.fragments?.length, true],
        ["Owner", (row) => row.custom_metadata?.["buckram.stream"] ?? row.custom_metadata?.["buckram.namespace"] ?? ""],
        ["Away", (row) => h("span", { class: "bad" }, (row.away ?? []).join(", "))],
      ], found.ledgers)),
      h("div", { class: "row" },
        h("button", { disabled: !before.length, onclick: () => go(before.pop()) }, "Previous"),
        h("button", { disabled: found.next === null, onclick: () => { before.push(after); go(found.next); } }, "Next")));
  };
  return every(0, show);
}

function one(main, id, { every, act }) {
  const path = url("ledgers", id);
  return every(10000, async () => {
    const found = await get(path);
    const stream = found.custom_metadata["buckram.stream"];
    main.replaceChildren(h("h1", {}, `Ledger ${id}`),
      session.administrator && session.changes ? h("div", { class: "row" },
        h("button", { onclick: () => act(`Repair ledger ${id}?`, "Missing and bad copies are made anew from good ones.",
          { action: "Repair" }, () => ask("POST", `${path}/repair`).then(() => { location.hash = "#/jobs"; })) }, "Repair"),
        found.state !== "closed" && !stream ? h("button", { class: "loss", onclick: () => act(`Recover ledger ${id}?`,
          "A writer that is still alive is fenced: its next append fails. Every entry that was acknowledged is kept.",
          { action: "Recover", loss: true }, () => ask("POST", `${path}/recover`)) }, "Recover") : null) : null,
      card("", h("p", {}, `${found.state}, ensemble ${found.ensemble_size}/${found.write_quorum}/${found.ack_quorum}, digest ${found.digest ?? "unknown"}`),
        found.last_entry === null ? null : h("p", {}, `${number(found.last_entry + 1)} entries, ${bytes(found.length)}`),
        stream ? h("p", {}, "It belongs to stream ", h("a", { href: `#/streams/${stream.split("/").map(encodeURIComponent).join("/")}` }, stream), ".") : null),
      card("Bookies by fragment", picture(found)),
      card("Fragments", table("The bookies of each range of entries", [
        ["From entry", (row) => number(row.first_entry), true],
        ["Bookies", (row) => row.ensemble.map((one, n) => [n ? ", " : "", named(one)])],
      ], found.fragments)));
  });
}

// A row for each bookie, a column for each fragment; the table below says the same.
function picture(ledger) {
  const shown = ledger.fragments.slice(-20), away = new Set(ledger.away);
  const names = [...new Set(shown.flatMap((one) => one.ensemble))];
  const left = 170, width = Math.max(40, 720 / shown.length), row = 26;
  const label = `${names.length} bookies hold ${shown.length} fragments; away: ${ledger.away.join(", ") || "none"}`;
  return svg("svg", { class: "ledger", viewBox: `0 0 ${left + width * shown.length + 10} ${(names.length + 1) * row + 6}`, role: "img", "aria-label": label },
    names.map((name, y) => svg("text", { x: 0, y: y * row + 18 }, name.slice(0, 24))),
    shown.map((one, x) => [
      one.ensemble.map((name) => svg("rect", { class: away.has(name) ? "away" : "held", x: left + x * width, y: names.indexOf(name) * row + 3, width: width - 4, height: row - 6, rx: 4 },
        svg("title", {}, `${name}: from entry ${one.first_entry}${away.has(name) ? ", away" : ""}`))),
      svg("text", { x: left + x * width, y: names.length * row + 18 }, number(one.first_entry)),
    ]));
}

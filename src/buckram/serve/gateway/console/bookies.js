// Bookies: where they are, how full, and what is asked of them.

import { ask, get, operator, session, url } from "./api.js";
import { bytes, card, h, number, table } from "./dom.js";

// A bookie's id, for those who may see more of it as a link.
export const named = (id) => (operator() ? h("a", { href: `#/bookies/${encodeURIComponent(id)}` }, id) : id);

export function bookies(main, [id], page) {
  return id ? one(main, id, page) : all(main, page);
}

function all(main, { every }) {
  return every(5000, async () => {
    const [rows, status] = await Promise.all([get("/v2/bookies"), get("/v2/status")]);
    const spaces = Object.fromEntries((status.bookies ?? []).map((one) => [one.id, one]));
    const space = [
      ["Used", (row) => used(spaces[row.id])],
      ["Free", (row) => bytes(spaces[row.id]?.free_bytes), true],
      ["Total", (row) => bytes(spaces[row.id]?.total_bytes), true],
    ];
    main.replaceChildren(h("h1", {}, "Bookies"), card("", table("All bookies that the cluster knows", [
      ["Bookie", (row) => named(row.id)],
      ["State", (row) => h("span", { class: row.state === "down" ? "bad" : row.state === "readonly" ? "warn" : "good" }, row.state)],
      ["Requested", (row) => row.asked],
      ["Address", (row) => (row.host ? `${row.host}:${row.port}` : "")],
      ...(operator() ? space : []),
    ], rows.bookies)));
  });
}

function used(space) {
  if (!space?.total_bytes) return "";
  const share = 1 - space.free_bytes / space.total_bytes;
  return h("meter", { min: 0, max: 1, high: 0.85, optimum: 0, value: share, title: `${Math.round(share * 100)} %`, "aria-label": `${Math.round(share * 100)} % used` });
}

function one(main, id, { every, act }) {
  const path = url("bookies", id);
  return every(5000, async () => {
    const found = await get(path);
    const words = ["state", "asked", "host", "port", "version", "connections", "open_files", "collections"];
    const readonly = found.asked !== "readonly";
    const changed = readonly ? "It takes no new entries until it is made writable again; it serves reads." : "It takes new entries again.";
    main.replaceChildren(h("h1", {}, `Bookie ${id}`),
      session.administrator && session.changes ? h("div", { class: "row" },
        h("button", { onclick: () => act(`Make ${id} ${readonly ? "read-only" : "writable"}?`, changed,
          { action: readonly ? "Make read-only" : "Make writable" },
          () => ask("PUT", `${path}/readonly`, { body: { readonly } })) }, readonly ? "Make read-only" : "Make writable"),
        found.may_be_decommissioned
          ? h("button", { class: "loss", onclick: () => act(`Decommission ${id}?`,
            "Everything that it held is copied to other bookies, and then it is removed. It cannot come back with its data.",
            { action: "Decommission", loss: true }, () => ask("POST", `${path}/decommission`).then(() => { location.hash = "#/jobs"; })) }, "Decommission")
          : found.state === "down" ? h("span", { class: "soft" }, found.why_kept)
          : h("button", { onclick: () => act(`Drain ${id}?`,
            "It becomes read-only, and everything that it holds is copied to other bookies while it serves reads.",
            { action: "Drain" }, () => ask("POST", `${path}/drain`).then(() => { location.hash = "#/jobs"; })) }, "Drain")) : null,
      card("Report of the bookie", table("", [["", ([name]) => name.replaceAll("_", " ")], ["", ([, value]) => String(value)]],
        words.filter((name) => found[name] !== null && found[name] !== "").map((name) => [name, found[name]]))),
      card("Space", table("", [["", ([name]) => name], ["", ([, value]) => value, true]], [
        ["free", bytes(found.free_bytes)], ["total", bytes(found.total_bytes)],
        ["reclaimed by collections", bytes(found.bytes_reclaimed)], ["could be reclaimed", bytes(found.bytes_reclaimable)]])),
      card("Memory", table("", [["Use", ([name]) => name], ["Bytes", ([, use]) => bytes(use.bytes), true], ["Limit", ([, use]) => bytes(use.limit_bytes), true]],
        Object.entries(found.memory))),
      card("Problems", table("", [["What", (row) => row.what], ["Why", (row) => row.why], ["Do", (row) => row.do]], found.troubles)),
      card("Unneeded data that is kept", table("", [["Why", (row) => row.why ?? row.reason ?? ""], ["Bytes", (row) => number(row.bytes), true]], found.kept)));
  });
}

// Namespaces: what they store, do, and may do.

import { get } from "./api.js";
import { bytes, card, h, number, table } from "./dom.js";

export function namespaces(main, rest, { every }) {
  return every(5000, async () => {
    const rows = Object.entries((await get("/v2/usage")).namespaces);
    const limit = (row, name, shown) => (row.quotas[name] === undefined ? "" : ` of ${shown(row.quotas[name])}`);
    const over = (row) => row.quotas.stored_bytes !== undefined && row.stored_bytes > 0.9 * row.quotas.stored_bytes;
    main.replaceChildren(h("h1", {}, "Namespaces"), card("", table("Usage as bookies reported it last, with quotas", [
      ["Namespace", ([name]) => h("a", { href: `#/streams/${encodeURIComponent(name)}` }, name)],
      ["Stored, all copies", ([, row]) => h("span", { class: over(row) ? "bad" : "" }, bytes(row.stored_bytes), limit(row, "stored_bytes", bytes)), true],
      ["Streams", ([, row]) => [number(row.streams), limit(row, "streams", number)], true],
      ["Ledgers", ([, row]) => [number(row.ledgers), limit(row, "ledgers", number)], true],
      ["Written", ([, row]) => [`${bytes(row.in_bytes_per_s)}/s`, limit(row, "in_bytes_per_s", bytes)], true],
      ["Read", ([, row]) => [`${bytes(row.out_bytes_per_s)}/s`, limit(row, "out_bytes_per_s", bytes)], true],
      ["Connections", ([, row]) => [number(row.connections), limit(row, "connections", number)], true],
    ], rows, "Bookies have reported no usage yet: they count from now on.")));
  });
}

// SQL databases: who leads, who follows, and how far behind.

import { get, url } from "./api.js";
import { bytes, card, h, number, table, time } from "./dom.js";

export function databases(main, [namespace, database], page) {
  return database ? one(main, namespace, database, page) : all(main, namespace, page);
}

const link = (full) => `#/databases/${full.split("/").map(encodeURIComponent).join("/")}`;

function all(main, namespace, { every }) {
  return every(10000, async () => {
    const spaces = (await get("/v2/namespaces?limit=1000")).namespaces;
    const chosen = namespace ?? (spaces.includes("default") ? "default" : spaces[0]);
    if (!chosen) return main.replaceChildren(h("h1", {}, "Databases"), h("p", {}, "There is no namespace that you may read."));
    const found = await get(`${url("namespaces", chosen, "databases")}?limit=1000`);
    main.replaceChildren(h("h1", {}, "Databases"),
      h("div", { class: "row" }, h("label", {}, "Namespace", h("select", { onchange: (event) => { location.hash = `#/databases/${encodeURIComponent(event.target.value)}`; } },
        spaces.map((name) => h("option", { value: name, selected: name === chosen }, name))))),
      card("", table(`Databases of ${chosen}`, [
        ["Database", (row) => h("a", { href: link(row.database) }, row.database.split("/")[1])],
        ["Leader", (row) => row.leader ?? h("span", { class: "warn" }, "no leader")],
        ["Offset", (row) => number(row.offset), true], ["Since", (row) => time(row.created)],
      ], found.databases)));
  });
}

function one(main, namespace, database, { every }) {
  const path = url("namespaces", namespace, "databases", database);
  return every(5000, async () => {
    const found = await get(path);
    main.replaceChildren(h("h1", {}, `Database ${found.database}`),
      card("", h("p", {}, found.leader ? `${found.leader} leads` : "The database has no leader"), h("p", {}, `Its log is at offset ${number(found.offset)}.`)),
      card("Followers", table("Followers that report their position", [
        ["Process", (row) => row.id], ["Offset", (row) => number(row.offset), true],
        ["Behind", (row) => number(Math.max(0, found.offset - row.offset)), true]], found.followers)),
      card("Snapshots", table(`States from offset ${number(found.earliest)} on can be forked`, [
        ["Offset", (row) => number(row.offset), true], ["Bytes", (row) => bytes(row.bytes), true], ["Made", (row) => time(row.time)]], found.snapshots)));
  });
}

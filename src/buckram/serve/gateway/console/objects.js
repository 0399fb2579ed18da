// Objects: directories and what is in them, upload, download, rename, delete.

import { ask, get, session, url } from "./api.js";
import { bytes, card, h, number, table, time } from "./dom.js";

const PAGE = 100;
const link = (namespace, directory = "") => `#/objects/${[namespace, ...parts(directory)].map(encodeURIComponent).join("/")}`;
const parts = (path) => path.split("/").filter(Boolean);
const last = (path) => path.slice(path.lastIndexOf("/") + 1);
const place = (namespace, name) => `${url("namespaces", namespace, "objects")}/${parts(name).map(encodeURIComponent).join("/")}`;

export function objects(main, [namespace, ...path], { every, act }) {
  let after = "", prefix = "";
  const before = [], directory = path.join("/");
  const show = async () => {
    const spaces = (await get("/v2/namespaces?limit=1000&partly=true")).namespaces;
    const chosen = namespace ?? (spaces.includes("default") ? "default" : spaces[0]);
    if (!chosen) return main.replaceChildren(h("h1", {}, "Objects"), h("p", {}, "There is no namespace whose objects you may read."));
    const query = new URLSearchParams({ limit: PAGE, ...(prefix ? { prefix } : { directory }), ...(after ? { after } : {}) });
    const found = await get(`${url("namespaces", chosen, "objects")}?${query}`);
    const go = (to) => { after = to; return show(); };
    main.replaceChildren(h("h1", {}, "Objects"),
      h("form", { onsubmit: (event) => { event.preventDefault(); before.length = 0; prefix = new FormData(event.target).get("prefix"); go(""); } },
        h("label", {}, "Namespace", h("select", { onchange: (event) => { location.hash = link(event.target.value); } },
          spaces.map((name) => h("option", { value: name, selected: name === chosen }, name)))),
        h("label", {}, "Names that begin with", h("input", { name: "prefix", value: prefix })), h("button", {}, "Show"),
        session.changes ? h("button", { type: "button", class: "main", onclick: () => upload(act, chosen, directory) }, "Upload") : null),
      card("", crumbs(chosen, directory),
        table(prefix ? `Names that begin with ${prefix}` : `Contents of ${chosen}/${directory}`, columns(chosen, prefix, act),
          [...found.directories.map((name) => ({ directory: name })), ...found.objects])),
      h("div", { class: "row" },
        h("button", { disabled: !before.length, onclick: () => go(before.pop()) }, "Previous"),
        h("button", { disabled: found.next === null, onclick: () => { before.push(after); go(found.next); } }, "Next")));
  };
  return every(0, show);
}

function crumbs(namespace, directory) {
  const steps = parts(directory);
  return h("nav", { class: "crumbs", "aria-label": "Directories" }, h("a", { href: link(namespace) }, namespace),
    steps.map((name, at) => [" / ", h("a", { href: link(namespace, steps.slice(0, at + 1).join("/")) }, name)]));
}

function columns(namespace, prefix, act) {
  const name = (row) => row.object.slice(namespace.length + 1);
  const shown = (full) => (prefix ? full : last(full));
  const of = (cell) => (row) => (row.directory === undefined ? cell(row) : "");
  return [
    ["Name", (row) => (row.directory !== undefined ? h("a", { href: link(namespace, row.directory) }, `${last(row.directory)}/`)
      : h("a", { href: place(namespace, name(row)), download: last(name(row)) }, shown(name(row))))],
    ["Size", of((row) => h("span", { title: `${number(row.bytes)} bytes` }, bytes(row.bytes))), true],
    ["Put", of((row) => time(row.time))],
    ["Expires", of((row) => time(row.expires))],
    ["Version", of((row) => number(row.version)), true],
    ["Metadata", of((row) => Object.entries(row.metadata).map(([key, value]) => h("div", { class: "mono" }, `${key}: ${value}`)))],
    ["", of((row) => (session.changes ? actions(namespace, name(row), row, act) : ""))],
  ];
}

const tag = (row) => ({ "If-Match": `"${row.version}"` });

function actions(namespace, name, row, act) {
  return h("div", { class: "row tight" },
    h("button", { "aria-label": `Rename ${name}`, onclick: () => act(`Rename ${namespace}/${name}?`,
      "Nothing is found under the old name any more. No byte is copied.",
      { action: "Rename", fields: [["name", "New name", { value: name, required: true }]] },
      (given) => ask("POST", url("namespaces", namespace, "rename-object"), { body: { source: name, name: given.name, if_absent: true } })) }, "Rename"),
    h("button", { class: "loss", "aria-label": `Delete ${name}`, onclick: () => act(`Delete ${namespace}/${name}?`,
      `Its ${bytes(row.bytes)} are deleted for good, unless it was replaced since it was shown here.`,
      { action: "Delete", loss: true }, () => ask("DELETE", place(namespace, name), { headers: tag(row) })) }, "Delete"));
}

function upload(act, namespace, directory) {
  act(`Put a file into ${namespace}/${directory}?`, "The object appears when all of it is stored. An existing object of this name stays, unless you replace it.",
    { action: "Upload", fields: [
      ["file", "File", { type: "file", required: true }],
      ["name", "Name (default: that of the file)", {}],
      ["replace", "Replace an existing object", { type: "checkbox" }]] },
    ({ file, name, replace }) => {
      const full = [...parts(directory), ...parts(name || file.name)].join("/");
      return ask("PUT", place(namespace, full), { body: file, headers: replace ? {} : { "If-None-Match": "*" } });
    });
}

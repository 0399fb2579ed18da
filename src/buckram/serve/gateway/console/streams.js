// Streams: lists, one stream with its cursors and segments, its records, and following it.

import { ask, get, session, url } from "./api.js";
import { card, h, number, seconds, table, time } from "./dom.js";
import { bytes } from "./dom.js";

export function streams(main, [namespace, stream], page) {
  if (stream) return one(main, namespace, stream, page);
  return all(main, namespace, page);
}

const link = (namespace, stream) => `#/streams/${encodeURIComponent(namespace)}${stream ? `/${encodeURIComponent(stream)}` : ""}`;

function all(main, namespace, { every, act }) {
  let after = "", prefix = "";
  const before = [];
  const show = async () => {
    const spaces = (await get("/v2/namespaces?limit=1000")).namespaces;
    const chosen = namespace ?? (spaces.includes("default") ? "default" : spaces[0]);
    if (!chosen) return main.replaceChildren(h("h1", {}, "Streams"), h("p", {}, "There is no namespace that you may read."));
    const query = new URLSearchParams({ long: true, limit: 50, prefix, ...(after ? { after } : {}) });
    const found = await get(`${url("namespaces", chosen, "streams")}?${query}`);
    const go = (to) => { after = to; return show(); };
    main.replaceChildren(h("h1", {}, "Streams"),
      h("form", { onsubmit: (event) => { event.preventDefault(); before.length = 0; prefix = new FormData(event.target).get("prefix"); go(""); } },
        h("label", {}, "Namespace", h("select", { onchange: (event) => { location.hash = link(event.target.value); } },
          spaces.map((name) => h("option", { value: name, selected: name === chosen }, name)))),
        h("label", {}, "Names that begin with", h("input", { name: "prefix", value: prefix })), h("button", {}, "Show"),
        session.changes ? h("button", { type: "button", class: "main", onclick: () => act(`Create a stream in ${chosen}?`,
          "The stream is empty, and has the settings of its namespace.", { action: "Create", fields: [["stream", "Name", { required: true }]] },
          (given) => ask("POST", url("namespaces", chosen, "streams"), { body: { stream: given.stream } })) }, "Create") : null),
      card("", table(`Streams of ${chosen}, by name`, [
        ["Stream", (row) => h("a", { href: link(chosen, row.stream.split("/")[1]) }, row.stream.split("/")[1])],
        ["Purpose", (row) => row.purpose],
        ["Records", (row) => number(row.records), true],
        ["Offsets", (row) => `${number(row.earliest)} to ${number(row.end)}`, true],
        ["Segments", (row) => number(row.segments), true],
        ["Last append", (row) => time(row.last_append_time_us)],
        ["Writer", (row) => (row.ended ? "ended" : row.writer ? `${row.writer.name}${row.writer.gone ? " (gone)" : ""}` : "")],
      ], found.streams)),
      h("div", { class: "row" },
        h("button", { disabled: !before.length, onclick: () => go(before.pop()) }, "Previous"),
        h("button", { disabled: found.next === null, onclick: () => { before.push(after); go(found.next); } }, "Next")));
  };
  return every(0, show);
}

function one(main, namespace, stream, { every, act }) {
  const path = url("namespaces", namespace, "streams", stream);
  const facts = h("div", {}), browser = records(path), live = follow(path);
  main.replaceChildren(h("h1", {}, `Stream ${namespace}/${stream}`), facts, browser.element, live.element);
  const stop = every(5000, async () => {
    const [found, rows] = await Promise.all([get(path), get(`${path}/segments?limit=100`)]);
    facts.replaceChildren(session.changes ? actions(path, namespace, stream, found, act) : "",
      h("div", { class: "cards" },
        card("Records", h("p", { class: "big" }, number(found.records)), h("p", { class: "soft" }, `offsets ${number(found.earliest)} to ${number(found.end)}`)),
        card("Purpose", h("p", { class: "big" }, found.purpose)),
        card("Writer", h("p", { class: "big" }, found.ended ? "The stream has ended" : found.writer ? found.writer.name : "None"),
          found.writer?.gone ? h("p", { class: "warn" }, "The writer is gone; the next one seals its segment.") : null),
        card("Retention in effect", retention(found.policy))),
      card("Cursors", table("Durable positions of readers", [
        ["Cursor", (row) => row.cursor], ["Offset", (row) => number(row.offset), true],
        ["Behind", (row) => number(row.lag), true], ["Moved", (row) => time(row.changed_us)]], found.cursors)),
      card("Segments", table("Segments, the oldest first, at most 100", [
        ["Number", (row) => row.number, true], ["Ledger", (row) => h("a", { href: `#/ledgers/${row.ledger}` }, row.ledger), true],
        ["From offset", (row) => number(row.first_offset), true], ["State", (row) => row.state], ["Since", (row) => time(row.created_us)]], rows.segments)));
  });
  return () => { stop(); live.stop(); };
}

function retention(policy) {
  const words = [];
  if (policy.retention_s !== null) words.push(`for ${seconds(policy.retention_s)}`);
  if (policy.retention_bytes !== null) words.push(`the newest ${bytes(policy.retention_bytes)}`);
  if (policy.retention_cursors) words.push("what a cursor has not passed");
  return h("p", {}, words.length ? `Kept: ${words.join(", ")}.` : "Everything is kept.");
}

function actions(path, namespace, stream, found, act) {
  const name = `${namespace}/${stream}`;
  const may = (what, otherwise = "") => {
    const why = found.refused[what] ?? otherwise;
    return { disabled: Boolean(why), title: why || null };
  };
  return h("div", { class: "row" },
    h("button", { ...may("write", found.ended ? "The stream has ended." : ""), onclick: () => act(`Append to ${name}?`, "One record is added at the end of the stream.",
      { action: "Append", fields: [["key", "Key (optional)", {}], ["value", "Value", {}]] },
      (given) => ask("POST", `${path}/records${given.key ? `?key=${encodeURIComponent(given.key)}` : ""}`,
        { body: new Blob([given.value], { type: "application/octet-stream" }) })) }, "Append"),
    h("button", { ...may("truncate"), onclick: () => act(`Truncate ${name}?`, "Records below the offset cannot be read any more, and their space is freed.",
      { action: "Truncate", loss: true, fields: [["before", "Drop everything below offset", { type: "number", min: found.earliest, max: found.end, value: found.earliest, required: true }]] },
      (given) => ask("POST", `${path}/truncate`, { body: { before: Number(given.before) } })) }, "Truncate"),
    h("button", { class: "loss", ...may("delete"), onclick: () => act(`Delete ${name}?`,
      `All ${number(found.records)} records and ${number(found.cursors.length)} cursors are deleted; a writer that is alive is fenced.`,
      { action: "Delete", loss: true }, () => ask("DELETE", path).then(() => { location.hash = link(namespace); })) }, "Delete"));
}

// -- values ----------------------------------------------------------------------------------------------

const decoded = (text) => Uint8Array.from(atob(text), (one) => one.charCodeAt(0));

function value(text, form) {
  if (text === null) return h("span", { class: "soft" }, "null");
  const data = decoded(text);
  if (form === "hex") return h("pre", {}, hex(data));
  const plain = new TextDecoder().decode(data);
  if (form === "json") {
    try { return h("pre", {}, JSON.stringify(JSON.parse(plain), null, 2)); } catch { /* it is shown as text */ }
  }
  return h("pre", {}, plain);
}

function hex(data) {
  const lines = [];
  for (let at = 0; at < data.length; at += 16) {
    const part = [...data.slice(at, at + 16)];
    const codes = part.map((one) => one.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    const signs = part.map((one) => (one > 31 && one < 127 ? String.fromCharCode(one) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${codes}  ${signs}`);
  }
  return lines.join("\n");
}

const columns = (form) => [
  ["Offset", (row) => number(row.offset), true],
  ["Appended", (row) => time(row.append_time_us)],
  ["Key", (row) => (row.key_base64 === null ? "" : value(row.key_base64, form === "hex" ? "hex" : "text"))],
  ["Value", (row) => value(row.value_base64, form)],
  ["Headers", (row) => Object.entries(row.headers ?? {}).map(([name, text]) => h("div", { class: "mono" }, `${name}: ${text}`))],
];

function records(path) {
  const place = h("div", {}), form = h("select", { name: "form" }, ["text", "json", "hex"].map((one) => h("option", { value: one }, one)));
  const start = h("input", { name: "start", value: "earliest", size: 12 });
  const say = (error) => place.replaceChildren(h("p", { class: "bad" }, error.message));
  const show = async (from) => {
    const answer = await get(`${path}/records?limit=50&start=${encodeURIComponent(from)}`, { raw: true });
    const rows = (await answer.text()).split("\n").filter(Boolean).map((line) => JSON.parse(line));
    const next = answer.headers.get("Buckram-Next-Offset");
    place.replaceChildren(table("", columns(form.value), rows, "There are no records from there on."),
      h("div", { class: "row" }, h("button", { onclick: () => { start.value = next; show(next).catch(say); } }, `From ${next}`)));
  };
  const element = card("Records", h("form", { onsubmit: (event) => { event.preventDefault(); show(start.value.trim()).catch(say); } },
    h("label", {}, "From offset, earliest or latest", start), h("label", {}, "Shown as", form), h("button", { class: "main" }, "Read")), place);
  return { element };
}

function follow(path) {
  let source = null;
  const most = 200, list = h("div", { class: "live", tabIndex: 0, role: "log", "aria-label": "New records" });
  const button = h("button", { "aria-pressed": "false", onclick: () => (source ? stop() : begin()) }, "Follow");
  const line = (...content) => {
    const bottom = list.scrollTop + list.clientHeight >= list.scrollHeight - 20;
    list.append(h("div", {}, ...content));
    while (list.childElementCount > most) list.firstElementChild.remove();
    if (bottom) list.scrollTop = list.scrollHeight;
  };
  const stop = () => {
    source?.close();
    source = null;
    button.textContent = "Follow";
    button.setAttribute("aria-pressed", "false");
  };
  const begin = () => {
    source = new EventSource(`${path}/tail`);
    button.textContent = "Stop";
    button.setAttribute("aria-pressed", "true");
    source.onmessage = (event) => {
      const row = JSON.parse(event.data);
      line(h("span", { class: "soft mono" }, `${row.offset} `), value(row.value_base64, "text"));
    };
    source.addEventListener("end", () => { line("The stream has ended."); stop(); });
    source.addEventListener("error", (event) => {
      if (event.data) line(h("span", { class: "bad" }, JSON.parse(event.data).message));
      else line(h("span", { class: "soft" }, "The connection was lost; reconnecting."));
    });
  };
  return { element: card("Follow", h("div", { class: "row" }, button), list), stop };
}

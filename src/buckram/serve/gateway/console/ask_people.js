// Dialogs: logging in, and confirming an action by the words that say what will happen.

import { h } from "./dom.js";

const dialog = () => document.getElementById("dialog");

function shown(title, ...content) {
  dialog().replaceChildren(h("h2", { id: "dialog-title" }, title), ...content);
  dialog().showModal();
}

// Resolves to the values of the fields, or to null. `fields`: [name, label, attributes].
export function confirmed(title, consequence, { action, loss = false, fields = [] }) {
  return new Promise((done) => {
    const end = (value) => { dialog().close(); done(value); };
    const inputs = fields.map(([name, label, attributes]) =>
      h("label", {}, label, h("input", { name, autocomplete: "off", ...attributes })));
    const form = h("form", { method: "dialog", onsubmit: (event) => {
      event.preventDefault();
      end(Object.fromEntries(new FormData(event.target)));
    } },
      h("p", {}, consequence), inputs,
      h("div", { class: "row" },
        h("button", { type: "button", onclick: () => end(null) }, "Cancel"),
        h("button", { class: loss ? "loss" : "main" }, action)));
    dialog().oncancel = () => done(null);
    shown(title, form);
  });
}

export const token = () => confirmed("Log in",
  "Give a token of this cluster (buckram token create). No page keeps it: the browser gets a session of 12 hours.",
  { action: "Log in", fields: [["token", "Token", { type: "password", required: true }]] });

// Ledgers that lack copies, who copies them, and why others wait.

import { ask, get, session } from "./api.js";
import { bytes, card, h, number, seconds, table } from "./dom.js";

export function replication(main, rest, { every, act }) {
  return every(5000, async () => {
    const found = await get("/v2/replication");
    const wanted = !found.enabled;
    main.replaceChildren(h("h1", {}, "Replication"),
      session.administrator && session.changes ? h("div", { class: "row" }, h("button", { onclick: () => act(
        wanted ? "Let copies be made?" : "Begin no copies any more?",
        wanted ? "Auditors and workers of the whole cluster go on." : "What is being copied is completed; after that lost copies are not made again.",
        { action: wanted ? "Enable" : "Disable", loss: !wanted }, () => ask("PUT", "/v2/replication", { body: { enabled: wanted } })) },
      wanted ? "Enable" : "Disable")) : null,
      card("", h("p", { class: found.enabled ? "" : "bad" }, found.enabled ? "Copies that are lost are made again." : "It is disabled: no copies are made."),
        h("p", {}, found.auditor ? `The auditor is ${found.auditor}.` : "There is no auditor: buckram autorecovery run starts one."),
        h("p", {}, `A lost bookie is waited for ${seconds(found.delay_s)}.`),
        found.brake ? h("p", { class: "bad" }, `Nothing is copied: ${found.brake.why}`) : null),
      card("Replicators", table("", [["Name", (row) => row.worker], ["Rate", (row) => `${bytes(row.bytes_per_s)}/s`, true]], found.workers)),
      card("Ledgers that lack copies", table(`${number(found.queue.length)} of them, at most 500 shown`, [
        ["Ledger", (row) => h("a", { href: `#/ledgers/${row.ledger}` }, row.ledger)], ["State", (row) => row.state],
        ["For", (row) => seconds(row.age_s), true], ["Ready in", (row) => seconds(row.eta_s), true], ["Why", (row) => row.why],
      ], found.queue.slice(0, 500), "Every ledger has all its copies, as far as it is known.")));
  });
}

// Ledgers that lack copies, who copies them, and why others wait.

import { ask, get, session } from "./api.js";
import { bytes, card, h, number, seconds, table } from "./dom.js";

export function replication(main, rest, { every, act }) {
  return every(5000, async () => {
    const found = await get("/v2/replication");
    const wanted = !found.enabled;
    main.replaceChildren(h("h1", {}, "Replication"),
      session.administrator && session.changes ? h("div", { class: "row" }, h("button", { onclick: () => act(
        wanted ? "Enable copying?" : "Disable copying?",
        wanted ? "Auditors and workers of the whole cluster go on." : "Copies in progress are completed; after that lost copies are not made again.",
        { action: wanted ? "Enable" : "Disable", loss: !wanted }, () => ask("PUT", "/v2/replication", { body: { enabled: wanted } })) },
      wanted ? "Enable" : "Disable")) : null,
      card("", h("p", { class: found.enabled ? "" : "bad" }, found.enabled ? "Lost copies are made again." : "Autorecovery is disabled: lost copies are not made again."),
        h("p", {}, found.auditor ? `The auditor is ${found.auditor}.` : "There is no auditor: buckram autorecovery run starts one."),
        h("p", {}, `Ledgers of a lost bookie are copied after ${seconds(found.delay_s)}.`),
        found.brake ? h("p", { class: "bad" }, `Copying is stopped: ${found.brake.why}`) : null),
      card("Replicators", table("", [["Name", (row) => row.worker], ["Rate", (row) => `${bytes(row.bytes_per_s)}/s`, true]], found.workers)),
      card("Ledgers that lack copies", table(`${number(found.queue.length)} ledgers, at most 500 shown`, [
        ["Ledger", (row) => h("a", { href: `#/ledgers/${row.ledger}` }, row.ledger)], ["State", (row) => row.state],
        ["Since", (row) => seconds(row.age_s), true], ["Ready in", (row) => seconds(row.eta_s), true], ["Why", (row) => row.why],
      ], found.queue.slice(0, 500), "Every ledger has all its copies, as far as is known.")));
  });
}

// Long jobs of this gateway.

import { ask, get, session, url } from "./api.js";
import { card, h, number, seconds, table } from "./dom.js";

export function jobs(main, rest, { every, act }) {
  return every(2000, async () => {
    const rows = (await get("/v2/jobs")).jobs.reverse();
    const far = ({ progress }) => (progress.total ? `${number(progress.done)} of ${number(progress.total)} ${progress.unit}` : "");
    main.replaceChildren(h("h1", {}, "Jobs"), card("", table("Jobs of this gateway since its start, the newest first", [
      ["Job", (row) => row.what], ["State", (row) => h("span", { class: row.state === "failed" ? "bad" : "" }, row.state)],
      ["Progress", far], ["Ready in", (row) => seconds(row.progress.eta_s), true],
      ["Result", (row) => row.error ?? (row.state === "done" ? h("pre", {}, JSON.stringify(row.result)) : "")],
      ["", (row) => (row.state === "running" && session.changes ? h("button", { onclick: () => act(`Cancel ${row.what}?`,
        "Completed work stays; the rest is not begun.", { action: "Cancel the job" }, () => ask("DELETE", url("jobs", row.id))) }, "Cancel") : "")],
    ], rows)));
  });
}

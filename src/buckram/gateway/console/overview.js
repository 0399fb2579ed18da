// How the cluster is, in words, numbers and plots of the last hour.

import { get } from "./api.js";
import { bytes, card, h, number, plot, table } from "./dom.js";

export function overview(main, rest, { every }) {
  return every(5000, async () => {
    const [status, history, gateways] = await Promise.all([get("/v2/status"), get("/v2/history"), get("/v2/gateways")]);
    const serving = status.bookies.filter((one) => one.state === "writable" || one.state === "readonly");
    const free = serving.reduce((sum, one) => sum + (one.free_bytes ?? 0), 0);
    const total = serving.reduce((sum, one) => sum + (one.total_bytes ?? 0), 0);
    const points = (name) => history.samples.map((one) => [one.time_us / 1000, one[name]]);
    main.replaceChildren(
      h("h1", {}, "Overview"),
      h("div", { class: "cards" },
        card("Health",
          h("p", { class: `big ${status.healthy ? "good" : "bad"}` }, status.healthy ? "All is well" : (status.problems.length === 1 ? "1 problem" : `${number(status.problems.length)} problems`)),
          h("p", { class: "soft" }, status.under_replicated ? `${number(status.under_replicated)} ledgers lack copies` : "Every ledger has all its copies, as far as it is known.")),
        card("Bookies",
          h("p", { class: "big" }, `${serving.length} of ${status.bookies.length} serve`),
          h("p", { class: "soft" }, `${bytes(free)} of ${bytes(total)} free`)),
        card("Repair",
          h("p", { class: "big" }, status.bytes_per_s ? `${bytes(status.bytes_per_s)}/s` : "Nothing is copied"),
          h("p", { class: "soft" }, status.auditor ? `Auditor: ${status.auditor}` : "Nobody looks for lost copies.")),
        card("Gateways", h("p", { class: "big" }, number(gateways.gateways.length)),
          gateways.gateways.slice(0, 5).map((one) => h("div", { class: "soft" }, one.url)))),
      card("Problems", table("What is wrong, and what to do", [
        ["What", (row) => row.what], ["Where", (row) => row.where], ["Why", (row) => row.why], ["Do", (row) => row.do],
      ], status.problems, "There are none.")),
      h("div", { class: "cards" },
        plot("Written, of all namespaces", points("in_bytes_per_s"), (value) => `${bytes(value)}/s`),
        plot("Read, of all namespaces", points("out_bytes_per_s"), (value) => `${bytes(value)}/s`),
        plot("Stored, all copies", points("stored_bytes"), bytes),
        plot("Ledgers that lack copies", points("under_replicated"), number)));
  });
}

// How the cluster is, in words, numbers and plots of the last hour.

import { get, operator } from "./api.js";
import { bytes, card, h, number, plot, table } from "./dom.js";

// How a severity of the list of findings looks. What is healthy is the gateway's word.
const SHOWN = { error: "bad", warning: "warn", info: "soft" };

function told(status) {
  if (!status.problems.length) return "Healthy";
  const counts = Object.keys(SHOWN)
    .map((severity) => [severity, status.problems.filter((one) => one.severity === severity).length])
    .filter(([, count]) => count)
    .map(([severity, count]) => `${number(count)} ${severity}${count === 1 || severity === "info" ? "" : "s"}`);
  return `${status.healthy ? "Healthy, with " : ""}${counts.join(", ")}`;
}

// What only those see who see the whole cluster.
function ofTheCluster(status) {
  const serving = status.bookies.filter((one) => one.state === "writable" || one.state === "readonly");
  return [
    card("Bookies",
      h("p", { class: "big" }, `${serving.length} of ${status.bookies.length} bookies serve`),
      h("p", { class: "soft" }, `${bytes(status.free_bytes)} of ${bytes(status.total_bytes)} free`)),
    card("Repair",
      h("p", { class: "big" }, status.bytes_per_s ? `${bytes(status.bytes_per_s)}/s` : "No copies in progress"),
      h("p", { class: "soft" }, status.auditor ? `Auditor: ${status.auditor}` : "No auditor looks for lost copies.")),
  ];
}

function copies(status) {
  if (!operator()) return "This covers what you may see, and the cluster as a whole.";
  return status.under_replicated ? `${number(status.under_replicated)} ledgers lack copies` : "No ledger is marked as lacking copies.";
}

function plots(history) {
  const points = (name) => history.samples.map((one) => [one.time_us / 1000, one[name]]);
  return h("div", { class: "cards" },
    plot("Written, of all namespaces", points("in_bytes_per_s"), (value) => `${bytes(value)}/s`),
    plot("Read, of all namespaces", points("out_bytes_per_s"), (value) => `${bytes(value)}/s`),
    plot("Stored, all copies", points("stored_bytes"), bytes),
    plot("Ledgers that lack copies", points("under_replicated"), number));
}

export function overview(main, rest, { every }) {
  return every(5000, async () => {
    const [status, gateways, history] = await Promise.all(
      [get("/v2/status"), get("/v2/gateways"), operator() ? get("/v2/history") : null]);
    main.replaceChildren(
      h("h1", {}, "Overview"),
      h("div", { class: "cards" },
        card("Health",
          h("p", { class: `big ${status.healthy ? "good" : "bad"}` }, told(status)),
          h("p", { class: "soft" }, copies(status))),
        ...(operator() ? ofTheCluster(status) : []),
        card("Gateways", h("p", { class: "big" }, number(gateways.gateways.length)),
          gateways.gateways.slice(0, 5).map((one) => h("div", { class: "soft" }, one.url)))),
      card("Problems", table("Findings, and what to do", [
        ["What", (row) => h("span", { class: SHOWN[row.severity] ?? "" }, row.what)], ["Severity", (row) => row.severity],
        ["Where", (row) => row.where], ["Why", (row) => row.why], ["Do", (row) => row.do], ["Runbook", (row) => row.runbook],
      ], status.problems, "There are no problems.")),
      history ? plots(history) : "");
  });
}

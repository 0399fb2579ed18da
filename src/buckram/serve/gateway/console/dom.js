// Building a page: elements from values. Text is always text, so nothing that the cluster says becomes markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.setAttribute("class", value);
    else if (name in element && !(element instanceof SVGElement) && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false));
  return element;
}

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export function card(title, ...content) {
  return h("section", { class: "card" }, title ? h("h2", {}, title) : null, ...content);
}

// `columns`: [title, function of a row, is it a number?]
export function table(caption, columns, rows, empty = "There are none.") {
  if (!rows.length) return h("p", { class: "soft" }, empty);
  const kind = (number) => (number ? "number" : "");
  return h("table", {},
    h("caption", {}, caption),
    h("thead", {}, h("tr", {}, columns.map(([title, , number]) => h("th", { scope: "col", class: kind(number) }, title)))),
    h("tbody", {}, rows.map((row) =>
      h("tr", {}, columns.map(([, cell, number]) => h("td", { class: kind(number) }, cell(row) ?? ""))))));
}

export function bytes(count) {
  if (count === null || count === undefined) return "";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let at = 0;
  while (count >= 1000 && at < units.length - 1) { count /= 1000; at += 1; }
  return `${at && count < 100 ? count.toFixed(1) : Math.round(count)} ${units[at]}`;
}

export const number = (count) => (count === null || count === undefined ? "" : Number(count).toLocaleString("en"));

export function time(us) {
  return us ? new Date(us / 1000).toISOString().replace("T", " ").replace("Z", " UTC") : "";
}

export function seconds(count) {
  if (count === null || count === undefined) return "";
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) if (count >= size) return `${+(count / size).toFixed(1)} ${unit}`;
  return `${+Number(count).toFixed(1)} s`;
}

// A line of points [time in ms, value]; the words below say the same as the picture.
export function plot(title, points, unit) {
  const width = 280, height = 100, most = Math.max(1, ...points.map(([, value]) => value));
  const first = points.length ? points[0][0] : 0, span = Math.max(1, (points.at(-1)?.[0] ?? 1) - first);
  const path = points.map(([at, value]) => `${(at - first) / span * width},${height - value / most * (height - 20)}`).join(" ");
  const newest = points.at(-1)?.[1];
  const words = newest === undefined ? "No samples yet" : `Now ${unit(newest)}, at most ${unit(most)}`;
  return h("figure", { class: "card" }, h("h2", {}, title),
    svg("svg", { class: "plot", viewBox: `0 0 ${width} ${height + 4}`, role: "img", "aria-label": `${title}: ${words}` },
      svg("line", { class: "grid", x1: 0, x2: width, y1: height, y2: height }),
      svg("line", { class: "grid", x1: 0, x2: width, y1: 20, y2: 20 }),
      svg("text", { x: 4, y: 14 }, unit(most)),
      svg("polyline", { class: "line", points: path })),
    h("figcaption", { class: "soft" }, words, "."));
}

// Shows a page's data: sections of figures, tables, point clouds and films. All texts are set as
// text, never as markup. Figures are drawn by Plotly when they come into view.
"use strict";
(() => {
const shown = { axis: "env_steps", band: "sd", hidden: new Set(), sorted: {}, chosen: {}, flat: false, stops: {} };
const whole = found => ({ styles: {}, sections: [], ...found });  // empty parts are left out
let data = whole(JSON.parse(document.getElementById("data").textContent));
const root = document.documentElement, system = matchMedia("(prefers-color-scheme: dark)");
const drawings = new Map();  // an element to the functions that find what it shows, and that draw it
const visible = new IntersectionObserver(entries => {
  for (const entry of entries) if (entry.isIntersecting) draw(entry.target);
}, { rootMargin: "300px" });

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter(child => child != null));
  return element;
}
const dark = () => root.dataset.theme === "dark";
const ink = name => getComputedStyle(root).getPropertyValue(name).trim();
const colour = label => (data.styles[label] || {})[dark() ? "dark" : "light"] || ink("--muted");
// Plotly reads a few tags and entities in texts.
const plain = text => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const short = value => value == null ? "" : Math.abs(value) >= 1e4 ? Math.round(value).toLocaleString("en")
  : String(Number(value.toPrecision(4)));

// --- drawing ---------------------------------------------------------------------------------

function draw(canvas) {
  if (!window.Plotly || !drawings.has(canvas)) return;
  const drawing = drawings.get(canvas), { traces, layout } = drawing.draw();
  Plotly.react(canvas, traces, layout, { displayModeBar: false, responsive: true });
  drawing.drawn = drawing.find();
  canvas.dataset.drawn = "yes";
}
function redraw(all = true) {
  for (const [canvas, drawing] of drawings) {
    if (!canvas.isConnected) { drawings.delete(canvas); if (canvas.dataset.drawn) Plotly.purge(canvas); }
    else if (canvas.dataset.drawn && (all || drawing.drawn !== drawing.find())) draw(canvas);
  }
}
function layoutOf(x, y) {
  const axis = title => ({ title: { text: plain(title), standoff: 8 }, gridcolor: ink("--line"), zeroline: false,
    linecolor: ink("--line"), tickcolor: ink("--line"), automargin: true, separatethousands: true });
  return { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 50, r: 18, t: 10, b: 42 },
    font: { family: getComputedStyle(root).fontFamily, size: 12, color: ink("--text") }, showlegend: false,
    hovermode: "closest", hoverlabel: { align: "left" }, xaxis: axis(x), yaxis: axis(y) };
}
const axisOf = figure => shown.axis in figure.axes ? shown.axis : Object.keys(figure.axes)[0];

function drawn(figure) {
  const axis = axisOf(figure), lines = figure.lines.filter(line => line.x[axis] && !shown.hidden.has(line.label));
  const means = figure.lines.some(line => line.kind === "mean");
  const known = new Set(figure.lines.flatMap(line => Object.keys(line.bands || {})));
  const band = known.has(shown.band) || shown.band === "none" || shown.band === "runs" ? shown.band : [...known][0];
  const note = line => figure.usual_n && (line.kind === "mean" || line.kind === "fewer") && line.n[0] !== figure.usual_n;
  const traces = [], named = new Set();
  for (const line of lines) {
    const ours = line.kind === "mean" || line.kind === "fewer", own = colour(line.label), x = line.x[axis];
    if (line.kind === "run" && means && shown.band !== "runs") continue;
    const look = data.styles[line.label] || {}, ends = ours && line.bands && line.bands[band];
    if (ends) traces.push({ x: [...x, ...x.slice().reverse()], y: [...ends[1], ...ends[0].slice().reverse()],
      fill: "toself", fillcolor: own, opacity: line.kind === "fewer" ? 0.07 : 0.16, line: { width: 0 }, mode: "lines",
      hoverinfo: "skip", showlegend: false });
    const hover = line.y.map((y, i) => `${plain(line.name)}<br>${plain(figure.axes[axis])} ${short(x[i])}: ${short(y)}`
      + (ends ? ` [${short(ends[0][i])}, ${short(ends[1][i])}]` : "") + (line.kind === "run" ? "" : `, n = ${line.n[i]}`));
    const title = line.kind === "paper" ? line.name : line.label;
    traces.push({ x, y: line.y, name: plain(title), showlegend: !named.has(title), legendgroup: title,
      mode: (line.kind === "paper" && line.y.length < 3 ? "markers" : line.kind === "run" || line.y.length > 40 ? "lines" : "lines+markers")
        + (note(line) ? "+text" : ""),
      text: line.y.map((_, i) => note(line) && i === line.y.length - 1 ? `n = ${line.n[i]}` : ""),
      textposition: "top center", textfont: { size: 10, color: own }, cliponaxis: false,
      hovertext: hover, hoverinfo: "text", connectgaps: false, opacity: ours ? 1 : 0.7,
      line: { color: own, width: line.kind === "mean" ? 2 : line.kind === "paper" ? 1.6 : 1,
        dash: line.kind === "paper" ? "6px,4px" : look.dash },
      marker: { color: own, symbol: line.kind === "paper" ? "x-thin-open" : look.symbol, size: line.kind === "mean" ? 6 : 4 } });
    named.add(title);
  }
  const layout = layoutOf(figure.axes[axis], figure.y_title);
  if (figure.y_range) layout.yaxis.range = figure.y_range;
  layout.xaxis.rangemode = "tozero";
  layout.uirevision = axis;  // what a reader has zoomed into stays, also when points are added
  if (axis === Object.keys(figure.axes)[0]) layout.shapes = (figure.rules || []).filter(rule => !shown.hidden.has(rule[0]))
    .map(([label, at]) => ({ type: "line", x0: at, x1: at, yref: "paper", y0: 0, y1: 1,
      line: { color: colour(label), width: 1, dash: "dot" } }));
  return { traces, layout };
}

function cloudDrawn(cloud) {
  const [x, y, z, reward] = [0, 1, 2, 3].map(i => cloud.points.map(point => point[i]));
  const marker = { size: shown.flat ? 5 : 2.5, color: reward, colorscale: "Viridis", opacity: 0.85,
    colorbar: { title: { text: "reward" }, thickness: 12, len: 0.7, outlinewidth: 0 } };
  const hovertext = reward.map(value => `reward ${short(value)}`), layout = layoutOf("PC 1", "PC 2");
  if (shown.flat) return { traces: [{ type: "scatter", mode: "markers", x, y, marker, hovertext, hoverinfo: "text" }], layout };
  const side = text => ({ title: { text }, gridcolor: ink("--line"), zerolinecolor: ink("--line"), showbackground: false, showticklabels: false });
  layout.margin = { l: 0, r: 0, t: 0, b: 0 };
  layout.scene = { xaxis: side("PC 1"), yaxis: side("PC 2"), zaxis: side("PC 3"), aspectmode: "cube", uirevision: cloud.name,
    camera: { eye: { x: 1.95, y: 1.95, z: 1.5 }, center: { x: 0, y: 0, z: -0.1 } } };  // so that the titles are inside
  return { traces: [{ type: "scatter3d", mode: "markers", x, y, z, marker, hovertext, hoverinfo: "text" }], layout };
}

// --- downloads -------------------------------------------------------------------------------

function save(name, kind, parts) {
  const address = URL.createObjectURL(new Blob(parts, { type: kind }));
  const link = make("a", { href: address, download: name.replace(/[^\w.-]+/g, "-") });
  document.body.append(link); link.click(); link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
// A spreadsheet takes a text that begins like a formula for one.
const csvCell = value => value == null ? "" : typeof value === "number" ? String(value)
  : `"${(/^\s*[=+\-@]/.test(value) && isNaN(value) ? "'" : "") + value.replace(/"/g, '""')}"`;
const csv = rows => rows.map(row => row.map(csvCell).join(",") + "\n");

function figureRows(figure) {
  const axes = Object.keys(figure.axes), bands = [...new Set(figure.lines.flatMap(line => Object.keys(line.bands || {})))];
  const head = ["line", "method", "kind", ...axes, "value", "n", ...bands.flatMap(band => [`${band}_low`, `${band}_high`])];
  return [head, ...figure.lines.flatMap(line => line.y.map((y, i) => [line.name, line.label, line.kind,
    ...axes.map(axis => line.x[axis] ? line.x[axis][i] : null), y, line.n[i],
    ...bands.flatMap(band => (line.bands || {})[band] ? line.bands[band].map(end => end[i]) : [null, null])]))];
}
async function saveImage(name, title, format, { traces, layout }) {
  const whole = { ...layout, title: { text: plain(title) }, showlegend: traces.length > 1, paper_bgcolor: ink("--back"),
    margin: { l: 60, r: 20, t: 50, b: 50 } };
  const address = await Plotly.toImage({ data: traces, layout: whole }, { format, width: 900, height: 520, scale: format === "png" ? 2 : 1 });
  const parts = format === "svg" ? [decodeURIComponent(address.slice(address.indexOf(",") + 1))]
    : [Uint8Array.from(atob(address.split(",")[1]), letter => letter.charCodeAt(0))];
  save(`${name}.${format}`, format === "svg" ? "image/svg+xml" : "image/png", parts);
}
function tools(name, title, image, rows) {
  const button = (text, about, onclick) => make("button", { type: "button", title: about, onclick }, text);
  return make("div", { class: "tools" },
    button("SVG", "Save this figure as SVG", () => saveImage(name, title, "svg", image())),
    button("PNG", "Save this figure as PNG", () => saveImage(name, title, "png", image())),
    button("CSV", "Save this figure's data as CSV", () => save(`${name}.csv`, "text/csv", csv(rows()))));
}

// --- parts of the page -----------------------------------------------------------------------

function figureElement(name, about, canvas, find, draw, rows, wide) {
  drawings.set(canvas, { find, draw: () => draw(find()) });
  visible.observe(canvas);
  return make("figure", { class: wide ? "wide" : "", "data-name": name }, make("h3", {}, about.title), canvas,
    make("figcaption", {}, about.note || ""), tools(name, about.title, () => draw(find()), rows));
}
const current = (section, kind, name) => (find(section)[kind] || []).find(item => item.name === name);
const find = name => data.sections.find(section => section.name === name) || {};

function figures(section) {
  const groups = [...new Set(section.figures.map(figure => figure.group || ""))];
  const box = make("div", { class: "figures" });
  const fill = () => {
    const group = groups.includes(shown.chosen[section.name]) ? shown.chosen[section.name] : groups[0];
    box.replaceChildren(...section.figures.filter(figure => (figure.group || "") === group).map(figure => {
      const now = () => current(section.name, "figures", figure.name) || figure;
      return figureElement(figure.name, figure, make("div", { class: "canvas" }), now, drawn, () => figureRows(now()));
    }));
  };
  fill();
  if (groups.length < 2) return [box];
  const choice = make("select", { onchange: event => { shown.chosen[section.name] = event.target.value; fill(); } },
    ...groups.map(group => make("option", { selected: group === shown.chosen[section.name] }, group)));
  return [make("label", {}, "Task", choice), box];
}

function table(section, grid) {
  const body = make("tbody"), heads = [];
  const value = cell => cell.value ?? (cell.text !== "" && !isNaN(cell.text) ? Number(cell.text) : cell.text);
  const numeric = grid.head.map((_, i) => grid.rows.some(row => row[i].value != null));
  const fill = () => {
    const now = current(section, "tables", grid.name) || grid, [column, down] = shown.sorted[grid.name] || [null, false];
    const rows = now.rows.slice();
    if (column != null) rows.sort((a, b) => {
      const [one, two] = [value(a[column]), value(b[column])];
      const order = typeof one === "number" && typeof two === "number" ? one - two
        : typeof one === "number" ? 1 : typeof two === "number" ? -1 : String(one).localeCompare(String(two), "en", { numeric: true });
      return down ? -order : order;
    });
    heads.forEach((head, i) => i === column ? head.setAttribute("aria-sort", down ? "descending" : "ascending") : head.removeAttribute("aria-sort"));
    body.replaceChildren(...rows.map(row => make("tr", {}, ...row.map((cell, i) => make("td", { class: numeric[i] ? "number" : "" },
      cell.bold ? make("strong", {}, cell.text) : cell.text || "",
      cell.below ? make("span", { class: "below" }, cell.below_bold ? make("strong", {}, cell.below) : cell.below) : null)))));
  };
  grid.head.forEach((text, i) => heads.push(make("th", { class: numeric[i] ? "number" : "", scope: "col" }, make("button", { type: "button", onclick: () => {
    const [column, down] = shown.sorted[grid.name] || [null, false];
    shown.sorted[grid.name] = [i, column === i ? !down : numeric[i]];
    fill();
  } }, text))));
  fill();
  const now = () => current(section, "tables", grid.name) || grid;
  const rows = () => [now().head, ...now().rows.map(row => row.map(cell => cell.below ? `${cell.text} [${cell.below}]` : cell.text || ""))];
  const box = make("div", { class: "table", "data-name": grid.name }, make("h3", {}, grid.title), make("div", { class: "scroll", tabindex: "0" },
    make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body)), make("div", { class: "caption" }, grid.caption || ""),
  make("div", { class: "tools" },
    make("button", { type: "button", onclick: () => save(`${grid.name}.tex`, "text/x-tex", [now().latex]) }, "LaTeX"),
    make("button", { type: "button", onclick: () => save(`${grid.name}.csv`, "text/csv", csv(rows())) }, "CSV")));
  grids.set(box, grid);
  return box;
}
const grids = new WeakMap();  // the element of a table to what it shows

function clouds(section) {
  const every = () => find(section.name).clouds || section.clouds;
  const cloud = () => every().find(one => one.name === shown.chosen[section.name]) || every()[0];
  const canvas = make("div", { class: "canvas" });
  const flat = make("button", { type: "button", "aria-pressed": "false", onclick: () => {
    shown.flat = !shown.flat; flat.setAttribute("aria-pressed", shown.flat); Plotly.purge(canvas); draw(canvas);
  } }, "2-D / 3-D");
  const box = figureElement("pca", { title: "Principal components of the latents", note: cloud().note }, canvas, cloud, cloudDrawn,
    () => [["pc1", "pc2", "pc3", "reward"], ...cloud().points], true);
  const choice = make("select", { onchange: event => {
    shown.chosen[section.name] = event.target.value; box.querySelector("figcaption").textContent = cloud().note; draw(canvas);
  } }, ...section.clouds.map(one => make("option", {}, one.name)));
  canvas.before(make("p", { class: "muted" }, "Every point is a state, its colour the reward. Drag to rotate."),
    make("div", { class: "tools" }, make("label", {}, "Encoder", choice), flat));
  return make("div", { class: "figures" }, box);
}

// A row per run: its films from the first checkpoint to the last, side by side.
function films(section) {
  const runs = new Map();
  for (const film of section.films) {
    const name = `${film.label} on ${film.task}, seed ${film.seed || 0}`;
    runs.set(name, [...(runs.get(name) || []), film]);
  }
  const rows = [...runs].flatMap(([name, own]) => [make("h3", {}, name), make("div", { class: "films" }, ...own.map(film => make("figure", {},
    film.moving_picture ? make("img", { src: film.address, alt: `${name}: ${film.name}`, loading: "lazy" })
      : make("video", { src: film.address, "aria-label": `${name}: ${film.name}`, controls: true, muted: true, loop: true, playsinline: true, preload: "metadata" }),
    make("figcaption", {}, film.name))))]);
  const box = make("div", {}, ...rows);
  const all = make("button", { type: "button", onclick: () => {
    const videos = [...box.querySelectorAll("video")], start = videos.some(video => video.paused);
    for (const video of videos) { if (start) { video.currentTime = 0; video.play().catch(() => {}); } else video.pause(); }
  } }, "Play or pause all together");
  return [section.films.some(film => !film.moving_picture) ? all : null, box];
}

function sectionElement(section) {
  const box = make("section", { "data-name": section.name, "data-shape": shape(section) },
    make("h2", { id: section.name }, section.title), section.text ? make("p", { class: "muted" }, section.text) : null);
  if (section.name === "runs") box.append(make("dl", {}, ...(data.facts || []).flatMap(([term, text]) => [make("dt", {}, term), make("dd", {}, text)])));
  if (section.remarks) box.append(make("ul", { class: "remarks" }, ...section.remarks.map(text => make("li", {}, text))));
  if (section.films) box.append(...films(section).filter(Boolean));
  if (section.clouds) box.append(clouds(section));
  if (section.figures) box.append(...figures(section));
  for (const grid of section.tables || []) box.append(table(section.name, grid));
  return box;
}
// What a section consists of; while it stays the same, its elements do.
const shape = section => JSON.stringify([section.remarks, ...["figures", "tables", "clouds"].map(kind => (section[kind] || []).map(item => [item.name, item.head, item.note])),
  (section.films || []).map(film => film.address), section.name === "runs" ? data.facts : null]);

// Runs that are being trained. The first click on Stop asks, the second one within four seconds stops.
function live() {
  const say = (run, text) => { shown.stops[run.address] = text; head(); };
  const stop = async run => {
    if (shown.stops[run.address] !== "Really stop?") {
      say(run, "Really stop?");
      setTimeout(() => { if (shown.stops[run.address] === "Really stop?") say(run, "Stop"); }, 4000);
      return;
    }
    say(run, "Stopping");
    const answer = await fetch(run.address, { method: "POST", headers: { "X-Kstep-Token": location.pathname.split("/")[1] } }).catch(() => null);
    if (!answer || !answer.ok) say(run, answer ? (await answer.text()).slice(0, 200) : "The server does not answer.");
  };
  return make("div", { class: "live" }, ...(data.live || []).map(run => {
    const text = run.address ? shown.stops[run.address] || "Stop" : "Stopping";
    const part = [`${(run.env_steps || 0).toLocaleString("en")} of ${run.budget.toLocaleString("en")} env steps`, run.left && `${run.left} left`, run.score && `newest return ${run.score}`];
    return make("div", {}, make("span", {}, make("strong", {}, run.label), ` on ${run.task}, seed ${run.seed || 0} `, make("span", { class: "muted" }, part.filter(Boolean).join(" · ")),
      run.film ? make("a", { href: "#films", class: "muted" }, ` · newest film: ${run.film}`) : null),
    make("button", { type: "button", class: "stop", title: "Ends it with a checkpoint, as Ctrl-C does", disabled: text === "Stopping", onclick: () => stop(run) }, text),
    make("progress", { max: run.budget, value: Math.min(run.env_steps || 0, run.budget), "aria-label": `${run.label} on ${run.task}, seed ${run.seed || 0}` }));
  }));
}

// Whether something is as it was when it was asked about before: then its elements stay, with the focus in them.
const before = {};
const same = (name, ...what) => { const text = JSON.stringify(what), known = before[name] === text; before[name] = text; return known; };

function head() {
  if (same("head", data.title, data.summary, data.alarms, data.live, shown.stops, data.sections.map(section => section.title))) return;
  document.getElementById("head").replaceChildren(make("h1", {}, data.title), make("p", { class: "lead" }, `${data.summary}.`),
    data.alarms ? make("ul", { class: "alarms", role: "alert" }, ...data.alarms.map(text => make("li", {}, text))) : "", live(),
    make("nav", { "aria-label": "Sections" }, ...data.sections.map(section => make("a", { href: `#${section.name}` }, section.title))));
}
function foot(text = "") {
  const made = data.made ? `Made ${data.made}. ` : "";
  document.getElementById("foot").replaceChildren(made, make("span", { id: "connection", role: "status" }, text));
}

function swatch(label) {
  const space = "http://www.w3.org/2000/svg", svg = document.createElementNS(space, "svg"), line = document.createElementNS(space, "line");
  svg.setAttribute("viewBox", "0 0 34 14"); svg.setAttribute("aria-hidden", "true");
  const dash = data.styles[label].dash;
  for (const [name, value] of Object.entries({ x1: 1, x2: 33, y1: 7, y2: 7, stroke: colour(label), "stroke-width": 3, "stroke-dasharray": dash === "solid" ? "none" : dash })) line.setAttribute(name, value);
  svg.append(line);
  return svg;
}
function bar() {
  if (same("bar", data.styles, dark(), data.sections.map(section => (section.figures || []).map(figure => Object.keys(figure.axes))))) return;
  const all = data.sections.flatMap(section => section.figures || []);
  const axes = Object.assign({}, ...all.filter(figure => Object.keys(figure.axes).length > 1).map(figure => figure.axes));
  const chips = Object.keys(data.styles).map(label => make("button", { type: "button", class: "chip", "aria-pressed": String(!shown.hidden.has(label)), onclick: event => {
    const hide = !shown.hidden.has(label);
    shown.hidden[hide ? "add" : "delete"](label);
    event.currentTarget.setAttribute("aria-pressed", String(!hide)); redraw();
  } }, swatch(label), label));
  const choice = (name, text, options) => make("label", {}, text, make("select", { id: name, onchange: event => { shown[name] = event.target.value; redraw(); } },
    ...Object.entries(options).map(([value, title]) => make("option", { value, selected: shown[name] === value }, title))));
  document.getElementById("bar").replaceChildren(make("div", { class: "chips", role: "group", "aria-label": "Methods" }, ...chips),
    Object.keys(axes).length > 1 ? choice("axis", "over", axes) : "",
    choice("band", "band", { sd: "± standard deviation", interval: "bootstrap interval", runs: "every seed", none: "none" }),
    make("button", { type: "button", id: "theme", title: "Light or dark", onclick: () => { root.dataset.theme = dark() ? "light" : "dark"; bar(); redraw(); } }, dark() ? "Light" : "Dark"));
}

function show() {
  const running = (data.live || []).map(run => run.address);
  for (const address of Object.keys(shown.stops)) if (!running.includes(address)) delete shown.stops[address];
  head(); bar(); foot();
  const main = document.getElementById("main"), old = new Map([...main.children].map(box => [box.dataset.name, box]));
  const boxes = data.sections.map(section => {
    const box = old.get(section.name);
    if (!box || box.dataset.shape !== shape(section)) return sectionElement(section);
    for (const grid of section.tables || []) {
      const place = [...box.querySelectorAll(".table")].find(one => one.dataset.name === grid.name);
      if (grids.get(place) === grid) continue;
      const scroll = place.querySelector(".scroll"), fresh = table(section.name, grid);
      place.replaceWith(fresh); fresh.querySelector(".scroll").scrollTo(scroll.scrollLeft, scroll.scrollTop);
    }
    return box;
  });
  if (boxes.some((box, i) => box !== main.children[i]) || boxes.length !== main.children.length) main.replaceChildren(...boxes);
  redraw(false);
}

// --- news ------------------------------------------------------------------------------------

let version = "";
// Parts that are as they were are only named.
function merged(news) {
  for (const section of news.sections) for (const kind of ["figures", "tables", "clouds"]) if (section[kind])
    section[kind] = section[kind].map(item => item.same ? current(section.name, kind, item.name) : item);
  return news;
}
async function ask() {
  try {
    const answer = await fetch(`data.json?known=${version}`).catch(() => null);
    if (!answer) foot("The connection to kstep watch is lost; the page shows what was known.");
    else if (answer.status === 200) { const news = await answer.json(); data = merged(whole(news.data)); version = news.version; show(); }
    else foot(answer.status === 204 ? "" : `The server answers ${answer.status}.`);
  } finally { setTimeout(ask, 2000); }
}

root.dataset.theme = system.matches ? "dark" : "light";
system.addEventListener("change", () => { root.dataset.theme = system.matches ? "dark" : "light"; bar(); redraw(); });
// The heading is painted first; the plotting library comes last in the file.
addEventListener("DOMContentLoaded", () => setTimeout(() => { show(); if (data.served) ask(); }));
})();

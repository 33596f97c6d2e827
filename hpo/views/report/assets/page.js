"use strict";
// Draws a page from its data (see hpo/views/report/content.py). What comes from a campaign reaches the document as text
// nodes and attributes only. `hpo.show(content)` may be called again with newer data; `hpo.drawers` holds what draws the
// figures that plotly does not: by name, a function of (element, data, look), which may be called again, too.
const hpo = (() => {
  const drawers = {};
  const system = matchMedia("(prefers-color-scheme: dark)");
  let shown = null;
  let printing = false;
  let chosen = "auto";
  try { chosen = localStorage.getItem("hpo-theme") || "auto"; } catch { /* a file may have no storage */ }

  // --- elements ------------------------------------------------------------------------------------------------------

  function make(tag, attributes, ...children) {
    const element = document.createElement(tag);
    fill(element, attributes, children);
    return element;
  }

  function draw(tag, attributes, ...children) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    fill(element, attributes, children);
    return element;
  }

  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    for (const child of children.flat()) {
      if (child !== null && child !== undefined) element.append(child);
    }
  }

  // --- colours -------------------------------------------------------------------------------------------------------

  function isDark() {
    return !printing && (chosen === "dark" || (chosen === "auto" && system.matches));
  }

  // A colour of the light theme as the current one has it, see-through ones too.
  function colour(value) {
    if (!isDark() || !shown) return value;
    if (value in shown.dark) return shown.dark[value];
    const found = /^rgba\((\d+), ?(\d+), ?(\d+), ?([\d.]+)\)$/.exec(value);
    if (!found) return value;
    const hex = "#" + [1, 2, 3].map((place) => Number(found[place]).toString(16).padStart(2, "0")).join("");
    const other = shown.dark[hex];
    if (!other) return value;
    const parts = [1, 3, 5].map((place) => parseInt(other.slice(place, place + 2), 16));
    return `rgba(${parts.join(",")},${found[4]})`;
  }

  function recoloured(value) {
    if (typeof value === "string") return value[0] === "#" || value.startsWith("rgba(") ? colour(value) : value;
    if (Array.isArray(value)) return value.map(recoloured);
    if (value && typeof value === "object") {
      const copy = {};
      for (const [name, one] of Object.entries(value)) copy[name] = recoloured(one);
      return copy;
    }
    return value;
  }

  function setTheme() {
    document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  }

  function switcher() {
    const buttons = ["auto", "light", "dark"].map((name) => {
      const button = make("button", { type: "button", "aria-pressed": String(name === chosen) }, name);
      button.addEventListener("click", () => {
        chosen = name;
        try { localStorage.setItem("hpo-theme", name); } catch { /* as above */ }
        setTheme();
        for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
        drawFigures();
      });
      return button;
    });
    return make("div", { class: "switch", role: "group", "aria-label": "colours" }, buttons);
  }

  // --- words ---------------------------------------------------------------------------------------------------------

  const LEVELS = { good: "well", note: "note", warn: "look at", bad: "wrong" };
  const SHAPES = {
    good: () => draw("path", { d: "M1.5 6 4.5 9 9.5 2.5", fill: "none", stroke: "currentColor", "stroke-width": 1.8 }),
    note: () => draw("circle", { cx: 5.5, cy: 5.5, r: 3 , fill: "currentColor" }),
    warn: () => draw("path", { d: "M5.5 0.5 11 10.5H0Z", fill: "currentColor" }),
    bad: () => draw("path", { d: "M1.5 1.5 9.5 9.5M9.5 1.5 1.5 9.5", stroke: "currentColor", "stroke-width": 2.2 }),
  };

  // A sentence in which `commands` are marked.
  function sentence(text) {
    return text.split("`").map((part, place) => (place % 2 ? make("code", {}, part) : part));
  }

  function health(findings) {
    return make("ul", { class: "health" }, findings.map((one) => make(
      "li", { class: one.level },
      draw("svg", { viewBox: "0 0 11 11", "aria-hidden": "true" }, SHAPES[one.level]()),
      make("span", { class: "visually-hidden" }, `${LEVELS[one.level]}: `), sentence(one.text),
    )));
  }

  function facts(list) {
    return make("dl", { class: "facts" }, list.map((one) => make(
      "div", { class: "fact" }, make("dt", {}, one.label), make("dd", {}, one.value), make("dd", { class: "note" }, one.note),
    )));
  }

  function table(found) {
    const cell = (tag, text, place) => make(tag, { class: found.numeric[place] ? "right" : place || tag === "th" ? null : "id" }, text);
    return make("div", { class: "wide" }, make("table", {},
      make("thead", {}, make("tr", {}, found.columns.map((text, place) => cell("th", text, place)))),
      make("tbody", {}, found.rows.map((row) => make("tr", {}, row.map((text, place) => cell("td", text, place))))),
    ));
  }

  // Where values lie in the range of a parameter: the first filled, the last hollow.
  function range(row) {
    const cell = make("td", { class: "range" });
    if (!row.places.length) return cell;
    const at = (place) => `${4 + 92 * place}%`;
    const marks = row.places.map((place, index) => {
      if (place === null) return null;
      const last = index && index === row.places.length - 1;
      return draw("circle", {
        cx: at(place), cy: 11, r: last ? 4 : 4.5, fill: last ? "var(--paper)" : "var(--blue)",
        stroke: last ? "var(--muted)" : "var(--paper)", "stroke-width": 1.5,
      });
    }).reverse();
    cell.append(draw("svg", { role: "img", "aria-label": `range ${row.low} to ${row.high}` },
      draw("title", {}, `${row.low} to ${row.high}`),
      draw("line", { x1: at(0), x2: at(1), y1: 11, y2: 11, stroke: "var(--rule)", "stroke-width": 2 }), marks));
    return cell;
  }

  function comparison(found) {
    const row = (one, kind) => make("tr", { class: kind || (one.differs ? null : "same") },
      make("th", { scope: "row" }, one.name), one.values.map((text) => make("td", { class: "value" }, text)), range(one));
    return make("div", { class: "wide" }, make("table", {},
      make("thead", {}, make("tr", {}, make("th", {}),
        found.heads.map((head, place) => make("th", { class: "value" }, head, make("br"), make("span", { class: "id" }, found.ids[place]))),
        make("th", {}, "in its range"))),
      make("tbody", {}, found.results.map((one) => row(one, "result")), found.parameters.map((one) => row(one))),
    ));
  }

  function campaign(one, alone) {
    return make("section", {},
      alone ? null : make("h2", {}, one.name),
      make("p", { class: alone ? "lead" : null }, one.lead),
      facts(one.facts),
      make("div", { class: one.comparison && one.comparison.heads.length > 2 ? "columns stacked" : "columns" },
        make("div", {}, make("h2", {}, "What to know"), health(one.health)),
        one.comparison ? make("div", {}, make("h2", {}, one.comparison.title),
          comparison(one.comparison)) : null),
      one.top ? make("details", {}, make("summary", {}, `The ${one.top.rows.length} best`), table(one.top)) : null,
    );
  }

  function heading(content) {
    const only = content.campaigns.length === 1 ? content.campaigns[0] : null;
    const below = only ? [only.task, only.span].filter(Boolean).join(" · ") : `${content.campaigns.length} campaigns side by side`;
    return make("header", {},
      make("div", { class: "top" },
        make("h1", {}, content.title), switcher()),
      make("p", { class: "kicker" }, below), only ? make("p", { class: "kicker" }, sentence(only.state)) : null);
  }

  // --- figures -------------------------------------------------------------------------------------------------------

  function key(figure) {
    return figure.campaign === undefined || figure.campaign === null ? figure.name : `${figure.name}-${figure.campaign}`;
  }

  function frame(figure, content) {
    const whose = figure.campaign === undefined || figure.campaign === null ? "" : ` · ${content.campaigns[figure.campaign].name}`;
    const id = `figure-${key(figure)}`;
    const old = document.getElementById(id);
    const element = old || make("figure", { "data-plot": figure.name, id },
      make("h3", {}), make("figcaption", {}), make("div", { class: "plot" }));
    element.querySelector("h3").textContent = plain(figure.title) + whose;
    element.querySelector("figcaption").textContent = figure.caption;
    return element;
  }

  // Figures of half a row that have no neighbour take the whole.
  function paired(frames, figures) {
    let open = false;
    figures.forEach((figure, place) => {
      const next = figures[place + 1];
      const half = figure.size === 1 && (open || (next !== undefined && next.size === 1));
      frames[place].classList.toggle("half", half);
      open = half && !open;
    });
  }

  // Titles are made for plotly, in which & < > are entities.
  function plain(text) {
    return text.replaceAll("%&#123;", "%{").replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
  }

  function laidOut(plot, width) {
    const layout = recoloured(plot.layout);
    delete layout.title;
    delete layout.width;
    const small = width < 560;
    layout.autosize = true;
    layout.paper_bgcolor = layout.plot_bgcolor = "rgba(0,0,0,0)";
    layout.uirevision = "kept";
    if (printing) layout.height = Math.round(0.8 * layout.height);
    layout.margin = { ...layout.margin, t: layout.showlegend === false ? 16 : 28, l: small ? 44 : layout.margin.l, r: small ? 6 : layout.margin.r };
    if (small) {
      layout.font = { ...layout.font, size: 11 };
      for (const [name, axis] of Object.entries(layout)) {
        if (/^[xy]axis/.test(name)) {
          axis.tickfont = { ...axis.tickfont, size: 10.5 };
          if (axis.title) axis.title = { ...axis.title, font: { ...axis.title.font, size: 11.5 } };
          if (name[0] === "x" && axis.nticks === undefined) axis.nticks = 6;
        }
      }
      if (layout.legend) layout.legend = { ...layout.legend, font: { ...layout.legend.font, size: 11 }, y: Math.max(layout.legend.y, 1.01) + 12 / layout.height };
    }
    return layout;
  }

  const CONFIG = {
    responsive: true, displaylogo: false, scrollZoom: false, doubleClickDelay: 400,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
    toImageButtonOptions: { format: "svg" },
    // What a page shows leaves the computer by no button.
    showSendToCloud: false,
  };

  function drawFigure(figure, element) {
    const place = element.querySelector(".plot");
    const width = place.clientWidth;
    if (figure.own !== undefined && figure.own !== null) {
      const style = getComputedStyle(document.documentElement);
      const look = { colour, dark: isDark(), printing, width, make, draw, ink: style.getPropertyValue("--ink").trim() };
      drawers[figure.name](place, figure.own, look);
      return;
    }
    const first = !place.classList.contains("js-plotly-plot");
    // Narrow figures have room for the button that saves them, and no more.
    const config = width < 560 ? { ...CONFIG, modeBarButtons: [["toImage"]] } : CONFIG;
    Plotly.react(place, recoloured(figure.plot.data), laidOut(figure.plot, width), config);
    if (first) place.on("plotly_click", (event) => showPoint(figure, event.points[0]));
  }

  const drawn = new WeakMap();

  // `fresh`: only those whose data are other ones than at last.
  function drawFigures(fresh = false) {
    if (!shown) return;
    for (const figure of shown.figures) {
      const element = document.getElementById(`figure-${key(figure)}`);
      if (fresh && drawn.get(element) === figure) continue;
      drawn.set(element, figure);
      try {
        drawFigure(figure, element);
      } catch (error) {
        element.querySelector(".plot").textContent = `This figure could not be drawn: ${error.message}`;
        console.error(error);
      }
    }
  }

  // --- one individual ------------------------------------------------------------------------------------------------

  function showPoint(figure, point) {
    let id = Array.isArray(point.customdata) ? point.customdata[0] : point.customdata;
    if (typeof id !== "string" && typeof point.hovertext === "string") id = point.hovertext.split(":")[0];
    if (typeof id !== "string") return;
    // Of a figure in which several campaigns are overlaid each trace has its own.
    const place = figure.campaign ?? point.data.meta ?? 0;
    const row = shown.details[place].ids.indexOf(id);
    if (row >= 0) panel(shown.details[place], row, shown.campaigns.length > 1 ? shown.campaigns[place].name : "");
  }

  // Of a column, plain or packed, the value of one row; null where there is none.
  function cellOf(column, row) {
    if (!column.packed) return column[row];
    column.numbers ||= new Float32Array(Uint8Array.from(atob(column.packed), (one) => one.charCodeAt(0)).buffer);
    const value = column.numbers[row];
    return Number.isNaN(value) ? null : Number(value.toPrecision(5));
  }

  function panel(details, row, campaign) {
    document.querySelector(".panel")?.remove();
    const text = (value) => {
      if (value === null || value === undefined) return "–";
      return typeof value === "number" && value && Math.abs(value) < 1e-3 ? value.toExponential() : String(value);
    };
    const line = (name, value) => make("tr", {}, make("th", { scope: "row" }, name), make("td", { class: "value" }, text(value)));
    const id = details.ids[row];
    const close = make("button", { type: "button", "aria-label": "close" }, "✕");
    const params = Object.entries(details.params).map(([name, column]) => [name, cellOf(column, row)]).filter(([, value]) => value !== null);
    const seconds = cellOf(details.seconds, row);
    const found = make("aside", { class: "panel" },
      make("div", { class: "top" }, make("h3", { class: "id" }, id), close),
      make("p", { class: "muted" }, [campaign, details.words[details.status[row]], details.words[details.operator[row]], seconds === null ? "" : `${Number(seconds.toPrecision(4))} s`].filter(Boolean).join(" · ")),
      make("table", {}, make("tbody", {},
        Object.entries(details.objectives).map(([name, column]) => line(name, cellOf(column, row))),
        params.map(([name, value]) => line(name, value)))),
      details.errors[id] ? make("pre", {}, details.errors[id]) : null);
    close.addEventListener("click", () => found.remove());
    document.body.append(found);
  }

  addEventListener("keydown", (event) => {
    if (event.key === "Escape") document.querySelector(".panel")?.remove();
  });

  // --- the page ------------------------------------------------------------------------------------------------------

  function show(content) {
    shown = content;
    setTheme();
    const page = document.getElementById("hpo-page");
    const alone = content.campaigns.length === 1;
    const figures = document.getElementById("hpo-figures") || make("div", { class: "figures", id: "hpo-figures" });
    const frames = content.figures.map((figure) => frame(figure, content));
    const missing = content.campaigns.flatMap((one) => one.missing.map((each) => make("li", {}, make("b", {}, each.title + (alone ? "" : ` · ${one.name}`)), ": ", sentence(each.reason))));
    const sections = content.campaigns.map((one) => campaign(one, alone));
    const openDetails = [...page.querySelectorAll("details")].map((one) => one.open);
    const before = [
      heading(content),
      ...(content.compared ? [make("h2", {}, "Side by side"), table(content.compared)] : []),
      ...(alone ? sections : []),
      ...(content.running ? [make("h2", {}, "Running now"), table(content.running)] : []),
      make("h2", {}, "Figures"),
      make("nav", { "aria-label": "figures" }, content.figures.filter((one) => !one.campaign).map((one) => make("a", { href: `#figure-${key(one)}` }, one.name))),
    ];
    const after = [
      ...(alone ? [] : sections),
      ...(missing.length ? [make("h2", {}, "Figures left out"), make("ul", { class: "missing" }, missing)] : []),
      make("footer", {}, ...content.campaigns.map((one) => make("span", {}, one.directory)), make("span", {}, `made ${content.made}`), make("span", {}, content.versions)),
    ];
    put(page, [...before, figures, ...after], figures);
    page.querySelectorAll("details").forEach((one, place) => { one.open = openDetails[place] || false; });
    const kept = new Set(frames);
    for (const old of [...figures.children]) if (!kept.has(old)) old.remove();
    frames.forEach((one, place) => { if (figures.children[place] !== one) figures.insertBefore(one, figures.children[place] || null); });
    paired(frames, content.figures);
    drawFigures(true);
    document.documentElement.dataset.drawn = String(content.figures.length);
  }

  // What is as it was stays, with what a person has selected in it; figures do not even move.
  function put(page, elements, figures) {
    elements.forEach((one, place) => {
      if (one === figures && figures.parentNode === page) {
        while (page.childNodes[place] !== figures) page.childNodes[place].remove();
        return;
      }
      const there = page.childNodes[place];
      if (there && there !== figures && there.isEqualNode(one)) return;
      if (there && there !== figures) there.replaceWith(one);
      else page.insertBefore(one, there || null);
    });
    while (page.childNodes.length > elements.length) page.lastChild.remove();
  }

  function forPrint(on) {
    if (printing === on || !shown) return;
    printing = on;
    setTheme();
    document.body.style.width = on ? "690px" : "";
    document.documentElement.classList.toggle("printing", on);
    for (const one of document.querySelectorAll("details")) one.open = on || one.open;
    drawFigures();
    for (const one of document.querySelectorAll(".js-plotly-plot")) Plotly.Plots.resize(one);
  }

  function start() {
    setTheme();
    const data = document.getElementById("hpo-data");
    if (data) show(JSON.parse(data.textContent));
    system.addEventListener("change", () => { setTheme(); drawFigures(); });
    addEventListener("beforeprint", () => forPrint(true));
    addEventListener("afterprint", () => forPrint(false));
  }

  return { drawers, show, start };
})();

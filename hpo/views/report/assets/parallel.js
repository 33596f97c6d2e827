"use strict";
// Parallel coordinates as SVG (see hpo/views/figures/parallel.py for the data). Dragging along an axis selects the lines
// that cross it there, a click on it takes the selection back. On a narrow page the axes lie, one below the other.
hpo.drawers.parallel = (element, data, look) => {
  const { make, draw, colour } = look;
  const state = element.hpoParallel ||= { brushes: {}, all: false, width: 0, latest: null, watcher: null };
  state.latest = [data, look];
  if (!state.watcher && typeof ResizeObserver === "function") {
    state.watcher = new ResizeObserver(() => {
      if (element.clientWidth && element.clientWidth !== state.width) hpo.drawers.parallel(element, ...state.latest);
    });
    state.watcher.observe(element);
  }
  const width = state.width = element.clientWidth || look.width || 800;
  const lying = width < 560;
  const axes = state.all ? data.axes : [...data.axes.slice(0, data.shown), ...data.axes.slice(-data.objectives)];
  const hidden = data.axes.length - axes.length;
  const last = axes.length - 1, first = axes.length - data.objectives;
  const INK = colour("#1d2129"), MUTED = colour("#667080"), RULE = colour("#a3abb8"), PAPER = colour("#ffffff");
  const ORANGE = colour("#e69f00");

  // Along the axes' order and across it: x and y, or y and x where axes lie.
  const step = lying ? 62 : Math.max(look.printing ? 60 : 86, (width - 70) / last);
  const across = lying ? width - 28 : 330;
  const start = lying ? 30 : 22, top = lying ? 14 : 56;
  const along = (axis) => start + axis * step;
  const point = (axis, place) => (lying ? [top + place * across, along(axis)] : [along(axis), top + (1 - place) * across]);
  const size = lying ? [width, along(last) + 34] : [along(last) + 50, top + across + 12];
  const letters = Math.max(6, Math.floor((lying ? width - 30 : step - 10) / 7.6));

  const shortened = (text, most) => {
    if (text.length <= most) return text;
    const head = Math.floor((most - 1) * 2 / 3);
    return `${text.slice(0, head)}…${text.slice(text.length - (most - 1 - head))}`;
  };

  // Straight from each axis to the next on which the line has a place, open around those on which it has none.
  const path = (line) => {
    let found = "", before = -1;
    const to = (command, axis, place) => {
      const [x, y] = point(axis, place);
      found += `${command}${x.toFixed(1)} ${y.toFixed(1)}`;
    };
    for (let axis = 0; axis < axes.length; axis += 1) {
      const place = axes[axis].places[line];
      if (place === null) continue;
      if (before < 0) {
        to("M", axis, place);
      } else {
        const from = axes[before].places[line];
        const between = (at) => from + (place - from) * (at - before) / (axis - before);
        for (let without = before + 1; without < axis; without += 1) {
          to("L", without - 0.3, between(without - 0.3));
          to("M", without + 0.3, between(without + 0.3));
        }
        to("L", axis, place);
      }
      before = axis;
    }
    return found;
  };

  const best = data.ids.length - 1;
  const paths = data.ids.map((id, line) => {
    const band = data.bands[data.band[line]];
    return draw("path", {
      d: path(line), fill: "none", "stroke-linecap": "round", "stroke-linejoin": "round",
      stroke: line === best ? ORANGE : colour(band.colour), "stroke-width": line === best ? 3 : 1.3,
      "stroke-opacity": line === best ? 1 : band.opacity,
    });
  });
  const lines = draw("g", {}, paths);

  const note = make("span", {});
  const reset = make("button", { type: "button", hidden: true }, "show all lines");
  reset.addEventListener("click", () => {
    state.brushes = {};
    hpo.drawers.parallel(element, ...state.latest);
  });

  function select() {
    const chosen = axes.map((axis) => state.brushes[axis.name]).map((brush, place) => [place, brush]).filter(([, brush]) => brush);
    let count = 0, leader = -1;
    paths.forEach((one, line) => {
      const inside = chosen.every(([axis, [low, high]]) => {
        const place = axes[axis].places[line];
        return place !== null && place >= low && place <= high;
      });
      one.style.display = inside ? "" : "none";
      if (inside) { count += 1; leader = line; }
    });
    reset.hidden = !chosen.length;
    const few = data.left_out ? `; ${data.left_out} of the others are left out` : "";
    note.textContent = chosen.length
      ? `${count} of ${paths.length} selected${leader < 0 ? "" : `, the best ${data.ids[leader]} with ${data.objective} ${data.values[leader]}`}`
      : `${paths.length} completed evaluations${few}. Drag along an axis to select.`;
  }

  function axis(one, place) {
    const [x0, y0] = point(place, 0), [x1, y1] = point(place, 1);
    const group = draw("g", {});
    group.append(draw("line", { x1: x0, y1: y0, x2: x1, y2: y1, stroke: place >= first ? INK : RULE, "stroke-width": place >= first ? 1.5 : 1 }));
    for (const [at, text] of one.ticks) {
      const [x, y] = point(place, at);
      const anchor = !lying ? "start" : at < 0.04 ? "start" : at > 0.96 ? "end" : "middle";
      group.append(
        draw("line", lying ? { x1: x, x2: x, y1: y, y2: y + 4, stroke: RULE } : { x1: x, x2: x + 4, y1: y, y2: y, stroke: RULE }),
        draw("text", {
          x: lying ? x : x + 6, y: lying ? y + 15 : y + 3.5, "text-anchor": anchor, "font-size": 10.5, fill: MUTED,
          stroke: PAPER, "stroke-width": 3, "stroke-opacity": 0.85, "paint-order": "stroke", "stroke-linejoin": "round",
        }, shortened(text, lying ? 9 : Math.max(5, letters - 2))));
    }
    const [x, y] = lying ? [top, y0 - 9] : [x1, y1 - 30];
    const anchor = lying || place === 0 ? "start" : place === last ? "end" : "middle";
    const shift = lying ? 0 : place === 0 ? -14 : place === last ? 42 : 0;
    const name = draw("text", {
      x: x + shift, y, "text-anchor": anchor, "font-size": 12.5, "font-weight": place >= first ? 650 : 500, fill: INK,
      stroke: PAPER, "stroke-width": 3, "paint-order": "stroke",
    }, shortened(one.name, letters), draw("title", {}, one.note ? `${one.name}, ${one.note}` : one.name));
    group.append(name);
    if (one.note && !lying) {
      group.append(draw("text", { x: x + shift, y: y + 13, "text-anchor": anchor, "font-size": 10, fill: MUTED }, shortened(one.note, letters + 2)));
    }
    const selected = draw("rect", { fill: ORANGE, "fill-opacity": 0.3, stroke: ORANGE, rx: 2, "pointer-events": "none", visibility: "hidden" });
    const show = (brush) => {
      selected.setAttribute("visibility", brush ? "visible" : "hidden");
      if (!brush) return;
      const [ax, ay] = point(place, brush[0]), [bx, by] = point(place, brush[1]);
      const box = lying ? { x: ax, y: ay - 6, width: bx - ax, height: 12 } : { x: ax - 6, y: by, width: 12, height: ay - by };
      for (const [key, value] of Object.entries(box)) selected.setAttribute(key, value);
    };
    show(state.brushes[one.name]);
    const hit = draw("rect", {
      ...(lying ? { x: x0 - 8, y: y0 - 12, width: across + 16, height: 26 } : { x: x0 - 13, y: y1 - 8, width: 26, height: across + 16 }),
      fill: "transparent", style: `cursor:crosshair;touch-action:${lying ? "pan-y" : "pan-x"}`,
    });
    const at = (event) => {
      const box = hit.ownerSVGElement.getBoundingClientRect();
      const place = lying ? (event.clientX - box.left - top) / across : 1 - (event.clientY - box.top - top) / across;
      return Math.min(1, Math.max(0, place));
    };
    let from = null;
    hit.addEventListener("pointerdown", (event) => {
      from = at(event);
      hit.setPointerCapture(event.pointerId);
      event.preventDefault();
    });
    hit.addEventListener("pointermove", (event) => {
      if (from === null) return;
      const to = at(event);
      state.brushes[one.name] = Math.abs(to - from) * across < 4 ? undefined : [Math.min(from, to), Math.max(from, to)];
      show(state.brushes[one.name]);
      select();
    });
    hit.addEventListener("pointerup", (event) => {
      if (from !== null && Math.abs(at(event) - from) * across < 4) state.brushes[one.name] = undefined;
      from = null;
      show(state.brushes[one.name]);
      select();
    });
    hit.addEventListener("pointercancel", () => { from = null; });
    group.append(selected, hit);
    return group;
  }

  const swatch = (title, stroke, opacity, thick) => make("span", { style: "white-space:nowrap;margin-right:14px" },
    draw("svg", { width: 22, height: 9, "aria-hidden": "true" }, draw("line", { x1: 1, x2: 21, y1: 5, y2: 5, stroke, "stroke-opacity": opacity, "stroke-width": thick, "stroke-linecap": "round" })),
    ` ${title}`);
  const legend = make("div", { style: "font-size:12px;line-height:1.6;margin-bottom:4px" },
    swatch("best", ORANGE, 1, 3.5), data.bands.map((band) => swatch(band.title, colour(band.colour), Math.min(1, band.opacity + 0.25), 2.5)));
  const more = make("button", { type: "button", hidden: !hidden && !state.all }, state.all ? `the ${data.shown} most important` : `all ${data.axes.length - data.objectives} parameters`);
  more.addEventListener("click", () => {
    state.all = !state.all;
    hpo.drawers.parallel(element, ...state.latest);
  });
  for (const button of [reset, more]) {
    button.setAttribute("style", `font:inherit;font-size:12px;padding:2px 8px;margin-left:10px;border:1px solid ${RULE};border-radius:6px;background:none;color:${INK};cursor:pointer`);
  }
  const picture = draw("svg", {
    width: size[0], height: size[1], viewBox: `0 0 ${size[0]} ${size[1]}`, role: "img", style: "display:block",
    "aria-label": `parallel coordinates of ${paths.length} evaluations over ${first} parameters and ${data.objective}`,
    "font-family": "inherit",
  }, lines, axes.map(axis));
  element.replaceChildren(legend, make("div", { style: "overflow-x:auto;overflow-y:hidden" }, picture),
    make("div", { style: `font-size:12px;line-height:1.8;color:${MUTED}` }, note, reset, more));
  select();
};

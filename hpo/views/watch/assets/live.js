"use strict";
// Keeps the page that page.js draws as the campaign is. The server says which parts there are, and of which version; what
// is not here yet is fetched. While the page is hidden nothing is asked for.
(() => {
  const have = new Map();
  const line = document.createElement("p");
  let wanted = null;
  let fetching = false;
  let asking = null;
  let changed = new Date();

  function say(state, text) {
    let place = document.getElementById("hpo-live");
    if (!place) {
      place = document.createElement("div");
      place.id = "hpo-live";
      place.setAttribute("role", "status");
      place.append(line);
      document.body.prepend(place);
    }
    if (place.dataset.state === state && line.textContent === text) return;
    place.dataset.state = state;
    line.textContent = text;
  }

  function sayHow() {
    if (wanted.problem) say("problem", wanted.problem);
    else if (!have.has("words")) say("waiting", wanted.reading ? "Reading the campaign …" : "Drawing the page …");
    else say("live", `live, changed ${changed.toLocaleTimeString([], { hour12: false })}`);
  }

  function show() {
    const words = have.get("words")?.data;
    if (!words) return;
    const running = have.get("running")?.data || null;
    const figures = words.figures.map((name) => have.get(name)?.data).filter(Boolean);
    hpo.show({ ...words.content, running, figures, details: have.get("details")?.data || [] });
  }

  async function fetchPart(name, version) {
    const answer = await fetch(`parts/${encodeURIComponent(name)}?v=${version}`, { cache: "no-store" });
    if (!answer.ok) return;
    have.set(name, { version, data: await answer.json() });
  }

  // One fetch of all that is missing at a time: what changes meanwhile is in the next one.
  async function update() {
    if (fetching) return;
    fetching = true;
    try {
      for (;;) {
        const missing = Object.entries(wanted.parts).filter(([name, version]) => have.get(name)?.version !== version);
        for (const name of [...have.keys()]) if (!(name in wanted.parts)) have.delete(name);
        if (!missing.length) break;
        const before = have.has("words");
        const words = missing.find(([name]) => name === "words");
        if (words && !before) {
          await fetchPart(...words);
          sayHow();
          show();
        }
        changed = new Date();
        await Promise.all(missing.filter((one) => before || one !== words).map((one) => fetchPart(...one)));
        show();
        if (document.hidden) break;
      }
    } catch {
      // The connection is gone; the next question says so.
    } finally {
      fetching = false;
    }
    sayHow();
  }

  // Every second, while the page is seen: by these questions the server knows that somebody looks.
  async function ask() {
    asking = true;
    try {
      const answer = await fetch("view", { cache: "no-store" });
      if (answer.status === 403) {
        say("problem", "hpo watch was started anew. What you see is the last that it sent; open the address that it prints now.");
        return;
      }
      if (!answer.ok) throw new Error(answer.statusText);
      wanted = await answer.json();
      sayHow();
      update();
    } catch {
      say("problem", "No connection to hpo watch; trying again. What you see is the last that it sent.");
    }
    asking = null;
    open();
  }

  function open() {
    if (!asking && !document.hidden) asking = setTimeout(ask, 1000);
  }

  hpo.start();
  say("waiting", "Connecting …");
  ask();
  document.addEventListener("visibilitychange", open);
})();

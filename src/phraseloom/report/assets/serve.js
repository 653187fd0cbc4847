/* The live page: what is typed goes to POST /translate and, if wanted, to POST /explain; the newest request wins. */
(() => {
  const { html } = Explain;
  const PAUSE = 250; // milliseconds without a key before a text is sent
  const place = (id) => document.getElementById(id);
  const fields = Object.fromEntries(["model", "beside", "beam", "source", "look", "targets", "problem", "explain"].map((id) => [id, place(id)]));
  const nBest = place("n-best");
  const kept = new Map(); // text of a source line → what its translation begins with
  let about, limits, timer, request;

  const chosen = () => [fields.model.value, fields.beside.value].filter((name, i, all) => name && all.indexOf(name) === i);
  const typed = () => fields.source.value.split("\n");
  const lines = () => typed().slice(0, limits.max_texts);
  const prefixOf = (line) => kept.get(line) ?? "";
  const looking = () => fields.look.getAttribute("aria-pressed") === "true";
  const say = (text) => (place("state").textContent = text);

  /** The reply to a body; an Error with what the server says, `wait` seconds where it is too busy. */
  async function post(path, body, signal) {
    const headers = { "Content-Type": "application/json" };
    const reply = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
    const found = await reply.json();
    if (reply.ok) return found;
    throw Object.assign(new Error(found.error.message), { wait: reply.status === 503 ? Number(reply.headers.get("Retry-After")) || 1 : 0 });
  }

  function later(milliseconds = PAUSE) {
    clearTimeout(timer);
    timer = setTimeout(update, milliseconds);
  }

  async function update() {
    clearTimeout(timer);
    request?.abort();
    const mine = (request = new AbortController());
    const [texts, models] = [lines(), chosen()];
    const empty = texts.every((text) => !text.trim());
    fields.targets.classList.add("old");
    say("…");
    try {
      const found = empty ? [] : await Promise.all(models.map((model) => post("translate", bodyOf(texts, model), mine.signal)));
      if (mine !== request) return;
      draw(texts, found);
      problem(null);
      say(typed().length > texts.length ? `only the first ${texts.length} lines` : "");
      await inside(texts, models, mine);
    } catch (error) {
      if (mine !== request || error.name === "AbortError") return;
      say("");
      problem(error);
    }
    fields.targets.classList.toggle("old", false);
  }

  function bodyOf(texts, model) {
    const body = { text: texts, prefix: texts.map(prefixOf), model };
    if (fields.beam.value) body.beam = Number(fields.beam.value);
    if (nBest.value) body.n_best = Math.min(Number(nBest.value), body.beam ?? Infinity);
    return body;
  }

  async function inside(texts, models, mine) {
    const some = texts.filter((text) => text.trim()).slice(0, limits.explain_texts);
    fields.explain.hidden = !looking() || !some.length;
    place("about").hidden = !fields.explain.hidden;
    if (fields.explain.hidden) return;
    say("looks inside …");
    const body = { text: some, prefix: some.map(prefixOf), models };
    if (fields.beam.value) body.beam = Number(fields.beam.value);
    const found = await post("explain", body, mine.signal);
    if (mine !== request) return;
    const left = typed().filter((text) => text.trim()).length - some.length;
    say(left ? `inside: the first ${some.length} sentences` : "");
    const before = fields.explain.explainPage?.state;
    const shown = Explain.show(found, fields.explain, { hash: false });
    if (before && before.sentence < some.length) shown.set({ ...before, pinned: null, cell: null });
  }

  /** Say what went wrong, and try again where the server only is too busy; null: nothing did. */
  function problem(error) {
    fields.problem.hidden = error === null;
    if (error === null) return;
    const again = error.wait ? ` Trying again in ${error.wait} s.` : "";
    fields.problem.textContent = (error instanceof TypeError ? "The server does not answer." : error.message) + again;
    if (error.wait) later(error.wait * 1000);
  }

  /* Drawing. */

  function draw(texts, found) {
    const { dataset, selectionStart, selectionEnd } = document.activeElement ?? {};
    fields.targets.className = `of-${found.length}`;
    fields.targets.replaceChildren(...found.map((reply) => column(texts, reply, found.length > 1)));
    const again = dataset?.key && [...fields.targets.querySelectorAll("[data-key]")].find((node) => node.dataset.key === dataset.key);
    again?.focus();
    if (again && selectionStart !== undefined) again.setSelectionRange?.(selectionStart, selectionEnd);
  }

  function column(texts, reply, named) {
    const [from, language] = about.find((model) => model.name === reply.model).languages;
    const same = place("source-name").textContent === from && place("target-name").textContent === language;
    const rows = reply.translations.flatMap((found, i) => (texts[i].trim() ? rowsOf(texts[i], found, `${reply.model} ${i}`) : []));
    const warnings = reply.warnings.map((text) => html("p", { class: "live-warning" }, text));
    return html("div", { lang: language }, named ? html("div", { class: "live-model" }, same ? reply.model : `${reply.model}: ${from} → ${language}`) : null, rows, warnings);
  }

  function rowsOf(source, found, key) {
    const best = row(source, found, `${key} 0`);
    best.append(begin(source, key));
    return [best, ...(found.alternatives ?? []).map((other, n) => row(source, other, `${key} ${n + 1}`, "other"))];
  }

  /** A translation as words; each one keeps the text up to its end. */
  function row(source, { text, score }, key, extra = "") {
    const prefix = prefixOf(source);
    const words = [...text.matchAll(/\S+/gu)].map((match, n) => {
      const end = match.index + match[0].length;
      const isKept = text.startsWith(prefix) && end <= prefix.length;
      return html("button", { type: "button", class: isKept ? "kept" : null, "aria-pressed": String(isKept), "data-key": `${key} ${n}`,
        title: isKept ? "Kept. Choose it again to keep only what is before it" : "Keep the translation up to this word",
        onclick: () => keep(source, text.slice(0, isKept ? match.index : end).trimEnd()) }, match[0]);
    });
    return html("div", { class: `live-row ${extra}`, dir: "auto" }, words, html("span", { class: "score", dir: "ltr", title: "score" }, score === null ? "" : score.toFixed(2)));
  }

  /** What the translation must begin with, as text. */
  function begin(source, key) {
    if (!kept.has(source)) return "";
    const input = html("input", { type: "text", dir: "auto", value: prefixOf(source), maxlength: limits.max_prefix_characters, "data-key": `${key} begin`,
      oninput: () => { kept.set(source, input.value); later(); } });
    const clear = html("button", { type: "button", onclick: () => keep(source, "") }, "let go");
    return html("label", {}, "begins with", input, clear);
  }

  function keep(source, prefix) {
    if (prefix) kept.set(source, prefix);
    else kept.delete(source);
    update();
  }

  /* The start. */

  function names() {
    const model = about.find((one) => one.name === fields.model.value);
    place("source-name").textContent = model.languages[0];
    place("target-name").textContent = model.languages[1];
    fields.beam.placeholder = model.beam;
    fields.beam.max = nBest.max = limits.max_beam;
    nBest.max = limits.max_n_best;
    place("about").textContent = chosen().map((name) => about.find((one) => one.name === name)).map((one) =>
      `${one.name}: ${one.parameters.toLocaleString("en")} parameters; ${one.description}${one.trees ? "; needs parse trees, which this page cannot give" : ""}`).join(" · ");
  }

  function change() {
    names();
    update();
  }

  async function start() {
    try {
      ({ models: about, limits } = await (await fetch("models")).json());
    } catch (error) {
      problem(error);
      return;
    }
    const options = (first) => [...first, ...about.map(({ name }) => html("option", { value: name }, name))];
    fields.model.replaceChildren(...options([]));
    fields.beside.replaceChildren(...options([html("option", { value: "" }, "—")]));
    place("beside-label").hidden = about.length < 2;
    names();
    fields.source.addEventListener("input", () => later());
    fields.source.addEventListener("keydown", (event) => event.key === "Enter" && event.ctrlKey && update());
    for (const field of [fields.beam, nBest]) field.addEventListener("input", () => later());
    for (const field of [fields.model, fields.beside]) field.addEventListener("change", change);
    fields.look.addEventListener("click", () => {
      fields.look.setAttribute("aria-pressed", String(!looking()));
      update();
    });
    if (fields.source.value) update();
    document.body.dataset.ready = "yes";
  }
  start();
})();

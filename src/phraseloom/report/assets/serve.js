/* The live page: what is typed goes to POST /translate and, if wanted, to POST /explain; the newest request wins. */
(() => {
  const { html } = Explain;
  const PAUSE = 250; // milliseconds without a key before a text is sent
  const place = (id) => document.getElementById(id);
  const fields = Object.fromEntries(["model", "beside", "beam", "source", "search", "look", "stream", "constrain", "terms", "targets", "problem", "explain"].map((id) => [id, place(id)]));
  const nBest = place("n-best");
  const DRAWS = { temperature: place("temperature"), top_k: place("top-k"), top_p: place("top-p"), seed: place("seed") };
  const SEPARATOR = ";"; // between the phrases of a field
  const wishes = new Map(); // text of a source line → what its translation must and must not contain, as typed
  const kept = new Map(); // text of a source line → what its translation begins with
  let about, limits, timer, request, before = [];

  const chosen = () => [fields.model.value, fields.beside.value].filter((name, i, all) => name && all.indexOf(name) === i);
  const typed = () => fields.source.value.split("\n");
  const lines = () => typed().slice(0, limits.max_texts);
  const prefixOf = (line) => kept.get(line) ?? "";
  const isOn = (button) => !button.disabled && button.getAttribute("aria-pressed") === "true";
  const looking = () => isOn(fields.look);
  const sampling = () => fields.search.value === "sample";
  const streaming = () => isOn(fields.stream);
  const constraining = () => isOn(fields.constrain);
  const modelOf = (name) => about.find((model) => model.name === name);
  const say = (text) => (place("state").textContent = text);

  /** The reply to a body; an Error with what the server says, `wait` seconds where it is too busy. */
  async function post(path, body, signal) {
    return (await send(path, body, signal)).json();
  }

  async function send(path, body, signal) {
    const headers = { "Content-Type": "application/json" };
    const reply = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
    if (reply.ok) return reply;
    throw failure((await reply.json()).error, reply.headers.get("Retry-After"));
  }

  const failure = ({ message, status }, wait) => Object.assign(new Error(message), { wait: status === 503 ? Number(wait) || 1 : 0 });

  /** The replies to one stream per text, one after the other; `show` after each piece of text. */
  async function streams(texts, model, signal, show) {
    const reply = { model, translations: texts.map(() => ({ text: "", score: null })), warnings: [] };
    show(reply);
    for (const [i, text] of texts.entries()) {
      if (!text.trim()) continue;
      const lines = jsonLines(await send("translate", { ...bodyOf([text], model), stream: true }, signal));
      for await (const line of lines) {
        if (line.error) throw failure(line.error);
        if (line.piece !== undefined) reply.translations[i] = { text: reply.translations[i].text + line.piece, score: null, writing: true };
        else {
          reply.translations[i] = line.translation;
          reply.warnings.push(...line.warnings.map((warning) => warning.replace(/\btext 1\b/, `text ${i + 1}`)));
        }
        show(reply);
      }
    }
    return reply;
  }

  /** The objects of a body of JSON lines, as they arrive. */
  async function* jsonLines(reply) {
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const parts = (rest + part.value).split("\n");
      rest = parts.pop();
      for (const line of parts) if (line) yield JSON.parse(line);
    }
    if (rest.trim()) yield JSON.parse(rest);
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
      const found = empty ? [] : await (streaming() ? written(texts, models, mine) : Promise.all(models.map((model) => post("translate", bodyOf(texts, model), mine.signal))));
      if (mine !== request) return;
      draw(texts, found);
      problem(null);
      say(typed().length > texts.length ? `only the first ${texts.length} lines` : "");
      await inside(texts, found, mine);
    } catch (error) {
      if (mine !== request || error.name === "AbortError") return;
      say("");
      problem(error);
    }
    fields.targets.removeAttribute("aria-busy");
    fields.targets.classList.toggle("old", false);
  }

  /** The replies of all models, drawn while they are written. */
  function written(texts, models, mine) {
    const replies = new Map();
    fields.targets.setAttribute("aria-busy", "true");
    const show = (reply) => {
      replies.set(reply.model, reply);
      if (mine === request && replies.size === models.length) draw(texts, models.map((model) => replies.get(model)));
    };
    return Promise.all(models.map((model) => streams(texts, model, mine.signal, show)));
  }

  /** The beam to ask for, at least the number of translations; null: the model's own. */
  function beamOf(model) {
    const typed = Number(fields.beam.value) || null;
    return Number(nBest.value) > (typed ?? modelOf(model).beam) ? Number(nBest.value) : typed;
  }

  /** A translation as a model reads it: words and phrases of a model that writes joined text, else the text. */
  const asTarget = (model, { text, tokens }) => (modelOf(model).joined && tokens ? tokens.join(" ") : text);

  function bodyOf(texts, model) {
    const body = { text: texts, model, sample: sampling() };
    if (texts.some(prefixOf)) body.prefix = texts.map(prefixOf);
    if (sampling()) for (const [name, field] of Object.entries(DRAWS)) if (field.value) body[name] = Number(field.value);
    if (sampling() || streaming()) {
      if (modelOf(model).terms) body.terms = {};
    } else if (beamOf(model)) body.beam = beamOf(model);
    if (nBest.value && !streaming()) body.n_best = Number(nBest.value);
    if (constraining()) {
      const constraints = texts.map(constraintsOf);
      if (constraints.some((own) => own)) body.constraints = constraints;
      if (fields.terms.value.trim()) body.terms = termsOf(fields.terms.value);
    }
    return body;
  }

  /** The constraints of a source line; null for none. */
  function constraintsOf(line) {
    const phrases = (text) => text.split(SEPARATOR).map((phrase) => phrase.trim()).filter((phrase) => phrase);
    const { include, exclude } = wishes.get(line) ?? { include: "", exclude: "" };
    const own = { include: phrases(include), exclude: phrases(exclude) };
    return line.trim() && (own.include.length || own.exclude.length) ? own : null;
  }

  /** Lines `source = target` as an object. */
  function termsOf(text) {
    const terms = {};
    for (const [i, line] of text.split("\n").entries()) {
      if (!line.trim()) continue;
      const [source, target, ...more] = line.split(/[=\t]/).map((part) => part.trim());
      if (!source || !target || more.length) throw new Error(`Terms, line ${i + 1}: write source = target.`);
      if (Object.hasOwn(terms, source)) throw new Error(`Terms, line ${i + 1}: ${source} is there twice.`);
      Object.defineProperty(terms, source, { value: target, enumerable: true });
    }
    return terms;
  }

  /** Look inside the models: at their own translations, or, if `explain` cannot repeat the search, at those of the first model. */
  async function inside(texts, replies, mine) {
    const places = texts.flatMap((text, i) => (text.trim() ? [i] : [])).slice(0, limits.explain_texts);
    const some = places.map((i) => texts[i]);
    const models = replies.map((reply) => reply.model);
    fields.explain.hidden = !looking() || !some.length;
    place("about").hidden = !fields.explain.hidden;
    if (fields.explain.hidden) return;
    say("looks inside …");
    const isConstrained = models.some((model) => modelOf(model).terms) || (constraining() && (fields.terms.value.trim() || texts.some(constraintsOf)));
    const isEnsemble = models.some((model) => modelOf(model).models > 1);
    const body = { text: some, models };
    const beams = new Set(models.map(beamOf));
    if (sampling() || streaming() || isConstrained || isEnsemble || beams.size > 1) {
      body.models = models.slice(0, 1);
      body.target = places.map((i) => asTarget(models[0], replies[0].translations[i]));
    } else {
      body.prefix = some.map(prefixOf);
      if (beamOf(models[0])) body.beam = beamOf(models[0]);
    }
    const found = await post("explain", body, mine.signal);
    if (mine !== request) return;
    const left = typed().filter((text) => text.trim()).length - some.length;
    const members = modelOf(body.models[0]).models;
    const parts = [
      left ? `the first ${some.length} sentences` : "",
      body.models.length < models.length ? `only ${body.models[0]}` : "",
      members > 1 ? `the first of the ${members} models of ${body.models[0]}` : "",
    ];
    say(parts.some((part) => part) ? `inside: ${parts.filter((part) => part).join(", ")}` : "");
    const state = fields.explain.explainPage?.state;
    const shown = Explain.show(found, fields.explain, { hash: false });
    if (state && state.sentence < some.length) shown.set({ ...state, pinned: null, cell: null });
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
    const [from, language] = modelOf(reply.model).languages;
    const same = place("source-name").textContent === from && place("target-name").textContent === language;
    const rows = reply.translations.flatMap((found, i) => (texts[i].trim() ? rowsOf(texts[i], found, reply.model, i) : []));
    const warnings = reply.warnings.map((text) => html("p", { class: "live-warning" }, text));
    return html("div", { lang: language }, named ? html("div", { class: "live-model" }, same ? reply.model : `${reply.model}: ${from} → ${language}`) : null, rows, warnings);
  }

  function rowsOf(source, found, model, i) {
    const key = `${model} ${i}`;
    const best = row(source, found, model, `${key} 0`);
    best.append(begin(source, key));
    if (constraining()) best.append(wishesOf(source, key));
    return [best, ...(found.alternatives ?? []).map((other, n) => row(source, other, model, `${key} ${n + 1}`, "other"))];
  }

  /** A translation as words, or as words and phrases; each one keeps the text up to its end. */
  function row(source, found, model, key, extra = "") {
    const { score, writing } = found;
    const text = asTarget(model, found);
    const label = (word) => (modelOf(model).joined ? word.replaceAll("_", "\u00a0") : word);
    if (writing) extra = "writing";
    const prefix = prefixOf(source);
    const words = [...text.matchAll(/\S+/gu)].map((match, n) => {
      const end = match.index + match[0].length;
      const isKept = text.startsWith(prefix) && end <= prefix.length;
      return html("button", { type: "button", class: isKept ? "kept" : null, "aria-pressed": String(isKept), "data-key": `${key} ${n}`,
        title: isKept ? "Kept. Choose it again to keep only what is before it" : "Keep the translation up to this word",
        onclick: () => keep(source, text.slice(0, isKept ? match.index : end).trimEnd()) }, label(match[0]));
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

  /** Fields for the phrases that a translation must and must not contain. */
  function wishesOf(source, key) {
    const typed = wishes.get(source) ?? { include: "", exclude: "" };
    const field = (name, label) => {
      const input = html("input", { type: "text", dir: "auto", value: typed[name], "data-key": `${key} ${name}`, placeholder: `phrase${SEPARATOR} phrase`,
        oninput: () => { wishes.set(source, { ...(wishes.get(source) ?? typed), [name]: input.value }); later(); } });
      return html("label", {}, html("span", {}, label), input);
    };
    return html("div", { class: "live-wishes" }, field("include", "must contain"), field("exclude", "must not contain"));
  }

  /** Constraints stay with their line while it is edited. */
  function follow() {
    const after = typed();
    if (after.length === before.length) {
      for (const [i, text] of after.entries()) {
        const old = wishes.get(before[i]);
        if (old && text !== before[i] && !after.includes(before[i])) {
          wishes.delete(before[i]);
          wishes.set(text, old);
        }
      }
    }
    before = after;
  }

  function keep(source, prefix) {
    if (prefix) kept.set(source, prefix);
    else kept.delete(source);
    update();
  }

  /* The start. */

  function names() {
    const model = modelOf(fields.model.value);
    place("source-name").textContent = model.languages[0];
    place("target-name").textContent = model.languages[1];
    fields.beam.placeholder = model.beam;
    fields.beam.max = nBest.max = limits.max_beam;
    nBest.max = limits.max_n_best;
    place("about").textContent = chosen().map(modelOf).map((one) =>
      `${one.name}: ${one.parameters.toLocaleString("en")} parameters; ${one.description}${one.trees ? "; needs parse trees, which this page cannot give" : ""}`).join(" · ");
  }

  /** Show the fields of the chosen search. Sampling has no beam; streams have one translation; only beam search keeps constraints. */
  function modes() {
    place("sampling").hidden = !sampling();
    fields.beam.disabled = sampling() || streaming();
    nBest.disabled = streaming();
    fields.constrain.disabled = sampling() || streaming();
    fields.constrain.title = fields.constrain.disabled ? "Only beam search keeps constraints" : "";
    place("terms-field").hidden = !constraining();
    const own = modelOf(fields.model.value).terms;
    fields.terms.placeholder = own ? `${own} terms of the server apply; write your own in their place` : "";
  }

  function change() {
    names();
    modes();
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
    modes();
    fields.source.addEventListener("input", () => {
      follow();
      later();
    });
    fields.source.addEventListener("keydown", (event) => event.key === "Enter" && event.ctrlKey && update());
    for (const field of [fields.beam, nBest, fields.terms, ...Object.values(DRAWS)]) field.addEventListener("input", () => later());
    for (const field of [fields.model, fields.beside, fields.search]) field.addEventListener("change", change);
    for (const button of [fields.look, fields.stream, fields.constrain]) {
      button.addEventListener("click", () => {
        button.setAttribute("aria-pressed", String(!isOn(button)));
        change();
      });
    }
    place("again").addEventListener("click", () => {
      DRAWS.seed.value = Number(DRAWS.seed.value) + 1;
      update();
    });
    if (fields.source.value) update();
    document.body.dataset.ready = "yes";
  }
  start();
})();

/* The bar of controls, the help, and the address of a view. */
(() => {
  const { html } = Explain;
  const KEYS = [
    ["← → ↑ ↓", "from word to word, or from cell to cell of the map"],
    ["Enter", "keep a word lit; Escape lets it go"],
    ["s  S", "next, previous sentence"],
    ["u", "next kind of attention"],
    ["l  L", "next, previous layer"],
    ["1 … 9", "this head"],
    ["h  H", "next, previous head"],
    ["0", "mean of all heads"],
    ["t", "slots, or weights spread over tokens"],
    ["c", "next colour scale"],
    ["+  −  f", "larger, smaller cells; the whole map at once"],
    ["e", "save this view as SVG"],
    ["?", "this help"],
  ];

  /** The bar of a page: {node, selects by name, attention: those that need attention, help: a dialog}. */
  Explain.controls = (page) => {
    const { sentences } = page.doc;
    const name = (sentence, i) => `${sentence.line ?? i + 1}: ${Explain.clip(sentence.source, 90)}`;
    const select = (label, key, change) => {
      const node = html("select", { "data-control": key, onchange: () => change(node.value) });
      return [html("label", {}, html("span", {}, label), node), node];
    };
    const button = (text, label, act, extra = {}) =>
      html("button", { type: "button", "aria-label": label, title: label, onclick: act, ...extra }, text);
    const [sentenceLabel, sentenceSelect] = select("Sentence", "sentence", (value) =>
      page.set({ sentence: Number(value) }),
    );
    sentenceSelect.append(...sentences.map((sentence, i) => html("option", { value: i }, name(sentence, i))));
    const [useLabel, useSelect] = select("Attention", "use", (value) => page.set({ use: value }));
    const [spreadLabel, spreadSelect] = select("Weights", "spread", (value) =>
      page.set({ spread: value === "tokens" }),
    );
    spreadSelect.append(
      html("option", { value: "slots" }, "of slots"),
      html("option", { value: "tokens" }, "spread over tokens"),
    );
    const [scaleLabel, scaleSelect] = select("Colours", "scale", (value) => page.set({ scale: value }));
    scaleSelect.append(
      ...Object.entries(Explain.SCALES).map(([key, scale]) => html("option", { value: key }, scale.label)),
    );
    const selects = { sentence: sentenceSelect, use: useSelect, spread: spreadSelect, scale: scaleSelect };
    const help = makeHelp();
    const attention = html(
      "div",
      { class: "controls attention", role: "group", "aria-label": "Attention shown" },
      useLabel,
      spreadLabel,
      scaleLabel,
      html(
        "span",
        { class: "buttons", role: "group", "aria-label": "Size of the map" },
        button("−", "Smaller cells", () => page.zoom(-1)),
        button("+", "Larger cells", () => page.zoom(1)),
        button("fit", "Whole map at once", () => page.zoom(0)),
      ),
      button("Save SVG", "Save this view as SVG", () => page.save(), { class: "push" }),
    );
    const ask = button("?", "Help and keys", () => help.showModal(), { class: "push" });
    if (sentences.length === 1) {
      attention.append(ask);
      ask.classList.remove("push");
      return { node: html("div", { class: "bar-top no-print" }, attention), selects, attention, help };
    }
    const node = html(
      "div",
      { class: "bar-top no-print" },
      html(
        "div",
        { class: "controls" },
        button("‹", "Previous sentence", () => page.step("sentence", -1)),
        button("›", "Next sentence", () => page.step("sentence", 1)),
        sentenceLabel,
        html("span", { class: "soft count" }, `of ${sentences.length}`),
        ask,
      ),
      attention,
    );
    return { node, selects, attention, help };
  };

  function makeHelp() {
    const dialog = html(
      "dialog",
      { class: "help", "aria-label": "Help and keys" },
      html("h2", {}, "How to read this page"),
      html(
        "p",
        {},
        "Point at a word: what it reads in the chosen attention lights up with its weight, or who reads it. Choose it to keep ",
        "it lit. Thick lines above words are the phrases (n-grams) it reads most. Frames are phrase alignments. With attention to ",
        "source phrases, each word has the weight of its whole phrase.",
      ),
      html(
        "p",
        {},
        "In the map a row is a query and a column is what it reads. Blocks beside the tokens are n-grams: the phrase slots.",
      ),
      html(
        "table",
        {},
        html(
          "tbody",
          {},
          KEYS.map(([key, about]) =>
            html("tr", {}, html("th", { scope: "row" }, html("kbd", {}, key)), html("td", {}, about)),
          ),
        ),
      ),
      html("form", { method: "dialog" }, html("button", {}, "Close")),
    );
    return dialog;
  }

  /** Write the state of a page to the address, so that what is shown can be linked. */
  Explain.writeHash = (page) => {
    const { state } = page;
    const list = (values) => page.doc.models.map((_, i) => values[i] ?? "").join(",");
    const parts = {
      s: state.sentence + 1,
      use: state.use ?? "",
      layer: list(state.layers),
      head: list(state.heads),
      weights: state.spread ? "tokens" : "slots",
      scale: state.scale,
    };
    if (state.pinned) parts.word = `${state.pinned.model + 1}.${state.pinned.side}.${state.pinned.index + 1}`;
    if (state.cell) parts.cell = state.cell;
    const text = `#${new URLSearchParams(parts)}`;
    if (text !== location.hash) history.replaceState(null, "", text);
  };

  /** The state that the address says, null where it says nothing. Values that do not exist are passed over. */
  Explain.readHash = (page) => {
    if (location.hash.length < 2) return null;
    const given = new URLSearchParams(location.hash.slice(1));
    const whole = (text, most) =>
      /^\d+$/.test(text ?? "") && Number(text) >= 1 && Number(text) <= most ? Number(text) : null;
    const list = (name) =>
      (given.get(name) ?? "")
        .split(",")
        .slice(0, page.doc.models.length)
        .map((text) => whole(text, 1000));
    const sentence = (whole(given.get("s"), page.doc.sentences.length) ?? 1) - 1;
    const change = {
      sentence,
      use: given.get("use"),
      layers: list("layer"),
      heads: list("head"),
      spread: given.get("weights") === "tokens",
      cell: whole(given.get("cell"), 60),
    };
    if (Object.hasOwn(Explain.SCALES, given.get("scale") ?? "")) change.scale = given.get("scale");
    const [model, side, index] = (given.get("word") ?? "").split(".");
    const view = page.doc.sentences[sentence].views[(whole(model, 2) ?? 0) - 1];
    const word = view && ["source", "target"].includes(side) ? whole(index, view[`${side}_words`].length) : null;
    return { ...change, pinned: word && { model: Number(model) - 1, side, index: word - 1 } };
  };
})();

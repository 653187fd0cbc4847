/* What stands around words and map: every head at a glance, shares of phrases, segments, phrase vectors, the gate. */
(() => {
  const { html, percent, colour, ink, orderName } = Explain;

  const panel = (title, about, ...content) =>
    html(
      "section",
      { class: "part" },
      html("h3", {}, title),
      about ? html("p", { class: "about" }, about) : null,
      content,
    );

  const overviews = new WeakMap();
  /** Small maps of every layer and head of a use, drawn once a view; `pick(layer, head)`, head null for the mean. */
  Explain.overview = (view, use, current, pick) => {
    const entries = view.attention.filter((entry) => entry.use === use);
    const heads = Math.max(...entries.map((entry) => entry.heads));
    if (heads === 1 && entries.length === 1) return null;
    if (!overviews.has(view)) overviews.set(view, {});
    const drawn = (overviews.get(view)[use] ??= drawOverview(view, entries, heads));
    drawn.pick = pick;
    for (const { button, layer, head } of drawn.thumbs) {
      button.setAttribute("aria-pressed", String(layer === current.layer && head === current.head));
    }
    return drawn.node;
  };

  function drawOverview(view, entries, heads) {
    const drawn = { thumbs: [] };
    const columns = [null, ...Array.from({ length: heads > 1 ? heads : 0 }, (_, h) => h + 1)];
    const cell = (entry, head) => {
      if (head !== null && head > entry.heads) return null;
      const button = thumb(view, entry, head, () => drawn.pick(entry.layer, head));
      drawn.thumbs.push({ button, layer: entry.layer, head });
      return button;
    };
    const top = html(
      "tr",
      {},
      html("th", { scope: "col" }, "layer"),
      columns.map((h) => html("th", { scope: "col" }, h === null ? (heads > 1 ? "mean" : "") : h)),
    );
    const rows = entries.map((entry) =>
      html(
        "tr",
        {},
        html("th", { scope: "row" }, entry.layer),
        columns.map((h) => html("td", {}, cell(entry, h))),
      ),
    );
    const size = Math.max(14, Math.min(34, Math.floor(310 / columns.length) - 9));
    const table = html(
      "table",
      { class: "overview", style: `--thumb:${size}px` },
      html("thead", {}, top),
      html("tbody", {}, rows),
    );
    drawn.node = panel(
      "Layers and heads",
      "Each scaled to its own maximum (square root).",
      html("div", { class: "scroll" }, table),
    );
    return drawn;
  }

  function thumb(view, entry, head, act) {
    const canvas = html("canvas", { "aria-hidden": "true" });
    const name = `layer ${entry.layer}, ${head === null ? "mean of heads" : `head ${head}`}`;
    Explain.plane(view, entry, head, false).then(
      (plane) => {
        Explain.paint(canvas, plane, { first: 0, end: plane.height }, { first: 0, end: plane.width }, "root");
      },
      () => canvas.remove(),
    );
    return html("button", { type: "button", class: "thumb", "aria-label": name, title: name, onclick: act }, canvas);
  }

  /** How much of the attention goes to slots of each order: by head of this layer, and by layer. */
  Explain.shares = (view, use, layer) => {
    const entries = view.shares
      .filter((entry) => entry.use === use && entry.query === 1)
      .map((entry) => ({ layer: entry.layer, heads: entry.heads.map((head) => head ?? {}) }));
    const orders = [...new Set(entries.flatMap((e) => e.heads.flatMap((head) => Object.keys(head))))]
      .map(Number)
      .sort((a, b) => a - b);
    if (orders.length < 2) return null;
    const mean = (heads) =>
      Object.fromEntries(orders.map((n) => [n, heads.reduce((sum, h) => sum + (h[n] ?? 0), 0) / heads.length]));
    const now = entries.find((entry) => entry.layer === layer);
    const bars = (name, share) =>
      html("tr", {}, html("th", { scope: "row" }, name), html("td", {}, bar(orders, share)));
    const group = (title, rows) =>
      html("table", { class: "bars" }, html("caption", {}, title), html("tbody", {}, rows));
    const key = html(
      "p",
      { class: "key" },
      orders.map((n, i) =>
        html("span", {}, html("i", { class: "swatch", style: `background:${shade(i, orders.length)}` }), orderName(n)),
      ),
    );
    return panel(
      "Share of each order",
      null,
      key,
      html(
        "div",
        { class: "columns" },
        now
          ? group(
              `Heads of layer ${layer}`,
              now.heads.map((h, i) => bars(i + 1, h)),
            )
          : null,
        group(
          "Layers, mean of heads",
          entries.map((e) => bars(e.layer, mean(e.heads))),
        ),
      ),
    );
  };

  const shade = (i, count) => colour(0.16 + (0.66 * i) / Math.max(1, count - 1));

  function bar(orders, share) {
    const text = orders.map((n) => `${orderName(n)} ${percent(share[n] ?? 0)}`).join(", ");
    const parts = orders.map((n, i) => {
      const width = share[n] ?? 0;
      const value = 0.16 + (0.66 * i) / Math.max(1, orders.length - 1);
      const style = `width:${(width * 100).toFixed(2)}%;background:${shade(i, orders.length)};color:${ink(value)}`;
      return width > 0 ? html("span", { style }, width > 0.13 ? Math.round(width * 100) : "") : null;
    });
    return html("div", { class: "bar", role: "img", "aria-label": text, title: text }, parts);
  }

  /** The segments of a segmental model: each source word joined with what it wrote, in order; or with nothing. */
  Explain.segments = (view) => {
    if (!view.segments) return null;
    const numbered = view.segments.map((segment, i) => ({ ...segment, number: i + 1, text: textOf(view, segment) }));
    const blocks = view.source_words.map((word, s) => {
      const own = numbered.filter((segment) => segment.source === s);
      const written = own.map((segment) =>
        html(
          "span",
          { class: "seg-target" },
          html("b", {}, segment.number),
          html("span", { dir: "auto" }, segment.text || "(nothing)"),
          segment.log_prob === null ? null : html("small", {}, Explain.decimal(segment.log_prob)),
        ),
      );
      return html(
        "li",
        { class: own.length ? `seg c${((own[0].number - 1) % 6) + 1}` : "seg none" },
        html("span", { class: "seg-source", dir: "auto" }, word),
        written.length ? written : html("span", { class: "seg-target" }, "–"),
      );
    });
    return panel(
      "Segments",
      "Each source word with what it wrote, numbered in the order of the target, and its log p; – wrote nothing.",
      html("ol", { class: "segments" }, blocks),
    );
  };

  /** The words of a segment; its tokens where a word is cut between segments. */
  function textOf(view, { target: [first, end], target_tokens: tokens }) {
    const cut = view.segments.some(
      (other) => other.target_tokens !== tokens && other.target[0] < end && first < other.target[1],
    );
    return cut ? view.target_tokens.slice(...tokens).join(" ") : view.target_words.slice(first, end).join(" ");
  }

  /** The weights of the tokens in the vector of each source phrase, one stage at a time. */
  Explain.phraseVectors = (view, state) => {
    const stages = view.phrase_vectors;
    if (!stages?.length) return null;
    const name = (stage) => (stage.layer === null ? stage.stage : `${stage.stage} ${stage.layer}`);
    const body = html("div", { class: "phrases" });
    const show = (i) => {
      state.stage = i;
      body.replaceChildren(...stages[i].phrases.map((phrase) => phraseBox(view, phrase)));
    };
    const select = html(
      "select",
      { onchange: () => show(select.selectedIndex) },
      stages.map((stage) => html("option", {}, name(stage))),
    );
    select.selectedIndex = Math.min(state.stage ?? 0, stages.length - 1);
    show(select.selectedIndex);
    return panel(
      "Phrase vectors",
      "How much each token counts in the vector of its phrase.",
      stages.length > 1 ? html("label", { class: "no-print" }, "of ", select) : null,
      body,
    );
  };

  function phraseBox(view, phrase) {
    const tokens = view.source_tokens.slice(phrase.begin, phrase.end).map((token, i) => {
      const weight = phrase.weights[i];
      return html(
        "span",
        { class: "column" },
        html("small", {}, weight === undefined ? "" : percent(weight)),
        weight === undefined ? null : tower(weight),
        html("span", { dir: "auto" }, token),
      );
    });
    const share = !phrase.share ? null : html("small", { class: "share" }, `glance ${percent(phrase.share)}`);
    return html("div", { class: "phrase" }, tokens, share);
  }

  /** A gate between words and phrases: what each target token is, and the fertility of each source token. */
  Explain.gate = (view) => {
    if (!view.gate) return null;
    const { word_share: shares, is_phrase: isPhrase } = view.gate;
    const columns = isPhrase.map((phrase, i) =>
      html(
        "span",
        { class: "column" },
        shares ? html("small", {}, percent(shares[i])) : null,
        shares ? tower(shares[i]) : null,
        html("span", { dir: "auto", class: phrase ? "is-phrase" : "" }, view.target_tokens[i] ?? ""),
        html("small", {}, phrase ? "phrase" : "word"),
      ),
    );
    const about = shares
      ? "Above each output the probability that the gate gave to a single word; below it what was written."
      : null;
    return [panel("Words or phrases", about, html("div", { class: "strip" }, columns)), fertility(view)];
  };

  function fertility(view) {
    const { fertility: all, classes } = view.gate;
    if (!all) return null;
    const tokens = all.flatMap((p, i) => (p === null ? [] : [[view.source_tokens[i], p]]));
    const head = html(
      "tr",
      {},
      html("th", {}),
      tokens.map(([token]) => html("th", { scope: "col" }, html("span", { dir: "auto" }, token))),
    );
    const rows = classes.map((name, k) =>
      html(
        "tr",
        {},
        html("th", { scope: "row" }, name),
        tokens.map(([, p]) => {
          const style = `background:${colour(p[k])};color:${ink(p[k])}`;
          return html(
            "td",
            { style, class: p[k] === Math.max(...p) ? "best" : "" },
            p[k] >= 0.01 ? Math.round(p[k] * 100) : "",
          );
        }),
      ),
    );
    return panel(
      "Fertility",
      "How many target words each source token gives: probability in %, the likeliest framed.",
      html(
        "div",
        { class: "scroll" },
        html("table", { class: "fertility" }, html("thead", {}, head), html("tbody", {}, rows)),
      ),
    );
  }

  const tower = (share) =>
    html(
      "span",
      { class: "tower" },
      html("i", { style: `height:${(100 * Math.max(0, Math.min(1, share))).toFixed(1)}%` }),
    );

  /** Transparent attention: how much of each encoder level each decoder layer reads. */
  Explain.levels = (model) => {
    const levels = model.level_shares;
    if (!levels) return null;
    const head = html(
      "tr",
      {},
      html("th", {}),
      levels[0].map((_, j) => html("th", { scope: "col" }, j + 1)),
    );
    const rows = levels.map((shares, i) =>
      html(
        "tr",
        {},
        html("th", { scope: "row" }, i ? `layer ${i}` : "embeddings"),
        shares.map((share) =>
          html("td", { style: `background:${colour(share)};color:${ink(share)}` }, Math.round(share * 100)),
        ),
      ),
    );
    return panel(
      "Encoder levels",
      "How much of each level of the encoder (rows) each decoder layer (columns) reads, in %.",
      html("table", { class: "fertility" }, html("thead", {}, head), html("tbody", {}, rows)),
    );
  };
})();

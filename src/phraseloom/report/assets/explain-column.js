/* One model's column: its words, what a word reads, the map with its layer and head, and the parts below. */
(() => {
  const { html, decimal, orderName, entryOf, headOf, titleOf } = Explain;

  /** The column of one view of a page: {node, words, reading, and with attention map, planes, entry, head, title}. */
  Explain.column = async (page, view, i) => {
    const { state } = page;
    const model = page.doc.models[i];
    const entry = entryOf(view, state, i);
    const column = { view, model, entry, number: i };
    column.words = new Explain.Words(view, model.languages, page.sentence.reference, {
      point: (side, index) => page.light(side === null ? state.pinned : { model: i, side, index }),
      pin: (side, index) => page.pin({ model: i, side, index }),
    });
    column.reading = html("div", { class: "reading-place" });
    const [main, rest] = [html("div", { class: "main" }), html("div", { class: "rest" })];
    if (entry) Object.assign(column, await look(view, entry, headOf(entry, state, i), state.spread));
    if (column.planes) {
      const { head } = column;
      column.map = new Explain.Map(`Heat map of ${model.label}: ${column.title}. Arrow keys move from cell to cell.`, {
        cell: (cell) => page.lightCell(column, cell),
        pick: (side, index) => page.pin({ model: i, side, index }),
      });
      main.append(choice(page, column), column.map.node);
      const choose = (layer, chosen) => page.choose(i, layer, chosen);
      const now = { layer: entry.layer, head };
      rest.append(
        ...present(Explain.overview(view, state.use, now, choose), Explain.shares(view, state.use, entry.layer)),
      );
    }
    const stage = (page.stage[i] ??= {});
    const extra = present(
      Explain.segments(view),
      Explain.gate(view),
      Explain.phraseVectors(view, stage),
      Explain.levels(model),
    );
    column.node = html(
      "section",
      { class: "model", "aria-label": model.label },
      heading(column),
      html("div", { class: "top" }, column.words.node, column.reading),
      html("div", { class: "stage" }, column.planes ? [main, rest] : null),
      html("div", {}, extra),
    );
    return column;
  };

  /** The weights of an attention: {planes, head, title}, or {problem} where they cannot be read. */
  async function look(view, entry, head, isSpread) {
    try {
      const [slots, tokens] = await Promise.all([
        Explain.plane(view, entry, head, false),
        Explain.plane(view, entry, head, true),
      ]);
      return { planes: { slots, tokens, shown: isSpread ? tokens : slots }, head, title: titleOf(entry, head) };
    } catch (problem) {
      return { problem: `${titleOf(entry, head)} cannot be read: ${problem.message}` };
    }
  }

  function heading({ view, model, problem }) {
    const facts = [model.languages.join(" → "), `${millions(model.parameters)} parameters`, model.description];
    const notes = [...view.notes, ...present(problem)].map((note) => html("p", { class: "note" }, note));
    return html(
      "header",
      {},
      html("h2", {}, model.label),
      html("p", { class: "soft" }, facts.filter(Boolean).join(" · ")),
      notes,
    );
  }

  /** Layer and head of one model. */
  function choice(page, column) {
    const { view, entry, head, number } = column;
    const entries = view.attention.filter((other) => other.use === entry.use);
    const shares = view.shares.find((s) => s.use === entry.use && s.layer === entry.layer && s.query === 1);
    const orders = (h) => {
      const share = shares?.heads[h - 1];
      const seen = Object.keys(share ?? {}).filter((n) => share[n] > 0);
      return seen.length === 1 && seen[0] !== "1" ? `: ${orderName(Number(seen[0]))}` : "";
    };
    const layers = html(
      "select",
      { "data-control": `layer${number}`, onchange: () => page.choose(number, Number(layers.value), head) },
      entries.map((other) =>
        html("option", { value: other.layer, selected: other === entry }, `${other.layer} of ${entries.length}`),
      ),
    );
    const all = Array.from({ length: entry.heads }, (_, h) => h + 1);
    const heads = html(
      "select",
      {
        "data-control": `head${number}`,
        onchange: () => page.choose(number, entry.layer, Number(heads.value) || null),
      },
      html("option", { value: 0, selected: head === null }, `all ${entry.heads} (mean)`),
      all.map((h) => html("option", { value: h, selected: h === head }, `${h}${orders(h)}`)),
    );
    return html(
      "div",
      { class: "controls choice" },
      entries.length > 1 ? html("label", { class: "no-print" }, html("span", {}, "Layer"), layers) : null,
      entry.heads > 1 ? html("label", { class: "no-print" }, html("span", {}, "Head"), heads) : null,
      html("span", { class: "only-print" }, column.title),
      html("span", { class: "soft" }, entry.kind),
    );
  }

  /** What stands beside the words while none is lit. */
  Explain.summary = ({ view, planes }) => {
    const facts = [];
    if (view.log_prob !== null)
      facts.push(
        `log p = ${decimal(view.log_prob)} (${decimal(view.log_prob / Math.max(1, view.target_tokens.length))} a token)`,
      );
    if (view.score !== null) facts.push(`score ${decimal(view.score)}`);
    facts.push(`${view.source_tokens.length} source tokens`, `${view.target_tokens.length} target tokens`);
    const hint = planes ? "Point at a word to see what it reads; click to keep it. ? shows the keys." : "";
    return html(
      "div",
      { class: "reading" },
      html("p", { class: "soft" }, facts.join(" · ")),
      hint ? html("p", { class: "soft no-print" }, hint) : null,
    );
  };

  const present = (...nodes) => nodes.flat(2).filter(Boolean);
  const millions = (count) =>
    count >= 1e6 ? `${(count / 1e6).toFixed(count >= 1e7 ? 0 : 1)} M` : `${Math.round(count / 1e3)} k`;
})();

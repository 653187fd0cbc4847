/* Which attention is chosen, and what lights up for a word in it. */
(() => {
  const { html, percent, decimal } = Explain;

  /** Which attention of a view a state means: its entry, or null where the view has none of this use. */
  Explain.entryOf = (view, state, model) => {
    const entries = view.attention.filter((entry) => entry.use === state.use);
    const wanted = state.layers[model] ?? Math.max(1, entries.length - 1);
    return entries.find((entry) => entry.layer === wanted) ?? entries.at(-1) ?? null;
  };
  /** The head of an entry that a state means; null: the mean of all. */
  Explain.headOf = (entry, state, model) => {
    const head = state.heads[model] ?? null;
    return head === null ? null : Math.min(head, entry.heads);
  };

  /** An attention in words. */
  Explain.titleOf = (entry, head) => {
    const heads = head === null ? `mean of ${entry.heads} heads` : `head ${head} of ${entry.heads}`;
    return `${Explain.USES[entry.use].label}, layer ${entry.layer}, ${heads}`;
  };

  /**
   * What lights up for a word: {side, weights, phrases, entries, isQuery}; `phrases` have a `level`, that of the line above their
   * words. Of source phrases also `areSourcePhrases`, and `within`: those that the word is in. Without attention its word links.
   */
  Explain.lightOf = ({ planes, view }, word) => {
    const other = word.side === "source" ? "target" : "source";
    if (!planes || (planes.slots.rowSide !== word.side && planes.slots.columnSide !== word.side)) {
      const own = word.side === "source" ? 0 : 1;
      const weights = new Map(
        view.word_links.filter((link) => link[own] === word.index).map((link) => [link[1 - own], link[2] ?? 1]),
      );
      const entries = planes
        ? []
        : [...weights].map(([w, weight]) => ({ label: view[`${other}_words`][w], kind: "linked", weight }));
      return { side: other, weights, phrases: [], entries, isQuery: null };
    }
    if (planes.slots.rowSide === word.side) {
      const { weights, slots } = Explain.reads(planes.tokens, planes.slots, word.index);
      const heavy = slots.filter((slot) => slot.kind !== "token" && slot.words && slot.weight > 0.03);
      const areSourcePhrases = slots.some((slot) => slot.kind === "phrase");
      const place = (phrase) => planes.slots.columns.findIndex((column) => column.end === phrase.end);
      const phrases = areSourcePhrases
        ? heavy.map((phrase) => ({ ...phrase, level: place(phrase) % 2 }))
        : heavy.slice(0, 3).map((phrase, level) => ({ ...phrase, level }));
      return { side: planes.slots.columnSide, weights, phrases, entries: slots, isQuery: true, areSourcePhrases };
    }
    const weights = Explain.readBy(planes.tokens, word.index);
    const entries = [...weights]
      .sort((a, b) => b[1] - a[1])
      .map(([w, weight]) => ({ label: view[`${other}_words`][w], kind: "word", weight }));
    const of = planes.slots.columns.filter((column) => column.kind === "phrase");
    const within = of.filter(({ words }) => Explain.touches(words, word.index)).map(({ label }) => label);
    return { side: other, weights, phrases: [], entries, isQuery: false, within };
  };

  /** Where the curves from a word end that is lit: {words [first, end), weight} of each, source phrases or words. */
  Explain.endsOf = ({ weights, phrases, areSourcePhrases }) =>
    areSourcePhrases ? phrases : [...weights].map(([word, weight]) => ({ words: [word, word + 1], weight }));

  /** Whether the label of a token or source phrase is of what is lit for a word. */
  Explain.isLit = (item, side, word, found) => {
    const isPhrase = item.kind === "phrase";
    if (isPhrase && found.isQuery) return found.phrases.some(({ end, weight }) => end === item.end && weight > 0.1);
    if (word.side === side && Explain.touches(item.words, word.index)) return true;
    return !isPhrase && !found.areSourcePhrases && found.side === side && found.weights.get(item.words[0]) > 0.1;
  };

  /** The list of what a word reads, or of who reads it, with its probability and its phrase links. */
  Explain.readingOf = ({ view }, word, found) => {
    const text = view[`${word.side}_words`][word.index];
    const within = found.within?.length ? ` in ${found.within.join(" and ")}` : "";
    const title = found.isQuery === null ? `“${text}”` : `“${text}”${within} ${found.isQuery ? "reads" : "is read by"}`;
    const facts = [];
    if (word.side === "target") {
      const logs = view.token_log_probs.filter((_, i) => view.target_word[i] === word.index);
      if (logs.length && logs.every((p) => p !== null))
        facts.push(`log p = ${decimal(logs.reduce((sum, p) => sum + p, 0))}`);
    }
    const own = word.side === "source" ? 0 : 1;
    for (const link of view.phrase_links) {
      const isPhrase = link[0][1] - link[0][0] > 1 || link[1][1] - link[1][0] > 1;
      if (!isPhrase || word.index < link[own][0] || word.index >= link[own][1]) continue;
      const [source, target] = [view.source_words.slice(...link[0]), view.target_words.slice(...link[1])].map((words) =>
        words.join(" "),
      );
      facts.push(`phrase link: ${source} ↔ ${target} (${percent(link[2])})`);
    }
    return list(title, found.entries, facts);
  };

  /** A list with bars. */
  const list = (title, entries, facts) =>
    html(
      "div",
      { class: "reading" },
      html("h3", {}, title),
      html(
        "table",
        {},
        html(
          "tbody",
          {},
          entries
            .filter((entry, i) => i < 5 && entry.weight >= 0.003)
            .map((entry) =>
              html(
                "tr",
                {},
                html("th", { scope: "row" }, html("bdi", {}, entry.label)),
                html("td", { class: "soft" }, entry.kind),
                html(
                  "td",
                  { class: "meter" },
                  html("i", { style: `width:${Math.min(100, entry.weight * 100).toFixed(1)}%` }),
                ),
                html("td", { class: "number" }, percent(entry.weight)),
              ),
            ),
        ),
      ),
      facts.length ? html("p", { class: "soft" }, facts.join(" · ")) : null,
    );
})();

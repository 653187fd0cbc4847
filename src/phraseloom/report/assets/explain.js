/* `Explain.show(document, element)`: the page's state, its controls and keys, and the columns of the models. */
(() => {
  const { html, percent, lightOf, readingOf } = Explain;
  const PAPER = [700, 540]; // pixels of a printed page that a map may take
  class Page {
    constructor(doc, element, options) {
      Object.assign(this, { doc, element, options });
      this.state = {
        sentence: 0,
        use: null,
        layers: [],
        heads: [],
        spread: false,
        scale: "max",
        pinned: null,
        cell: null,
      };
      this.stage = {};
      this.element.classList.add("explain");
      this.controls = Explain.controls(this);
      this.body = html("div", { class: "models" });
      this.said = html("div", { class: "sr", "aria-live": "polite" });
      element.replaceChildren(this.controls.node, this.body, this.said, this.controls.help);
      this.listeners = [
        [document, "keydown", (event) => this.key(event)],
        [window, "resize", () => this.columns.forEach((column) => column.words.draw())],
        [window, "beforeprint", () => this.print(true)],
        [window, "afterprint", () => this.print(false)],
        [window, "hashchange", () => this.readHash()],
      ];
      for (const [target, name, listener] of this.listeners) target.addEventListener(name, listener);
      if (!this.readHash()) this.render();
    }

    /** Take the state from the address; whether there was one. */
    readHash() {
      const found = this.options.hash === false ? null : Explain.readHash(this);
      if (found) this.set(found);
      return found !== null;
    }

    writeHash() {
      if (this.options.hash !== false) Explain.writeHash(this);
    }

    destroy() {
      for (const [target, name, listener] of this.listeners) target.removeEventListener(name, listener);
      this.element.replaceChildren();
    }

    get sentence() {
      return this.doc.sentences[this.state.sentence];
    }

    /** The uses that some model has in this sentence. */
    get uses() {
      return Object.keys(Explain.USES).filter((use) =>
        this.sentence.views.some((view) => view.attention.some((entry) => entry.use === use)),
      );
    }

    set(change) {
      const isNew = "sentence" in change && change.sentence !== this.state.sentence;
      Object.assign(this.state, isNew ? { pinned: null } : {}, change);
      this.render();
    }

    /* Drawing. */

    async render() {
      const turn = (this.turn = (this.turn ?? 0) + 1);
      const { uses, state } = this;
      if (!uses.includes(state.use)) state.use = uses[0] ?? null;
      this.controls.selects.sentence.value = state.sentence;
      this.controls.selects.use.replaceChildren(
        ...uses.map((use) => html("option", { value: use }, Explain.USES[use].label)),
      );
      this.controls.selects.use.value = state.use;
      this.controls.selects.spread.value = state.spread ? "tokens" : "slots";
      this.controls.selects.scale.value = state.scale;
      this.controls.attention.hidden = !uses.length;
      const isSpread = this.sentence.views.some((view) =>
        view.attention.some((entry) => entry.use === state.use && entry.tokens),
      );
      this.controls.selects.spread.parentNode.hidden = !isSpread;
      const columns = await Promise.all(this.sentence.views.map((view, i) => Explain.column(this, view, i)));
      if (turn !== this.turn) return;
      const focused = document.activeElement?.dataset?.control;
      this.body.className = `models of-${columns.length}`;
      this.body.replaceChildren(...columns.map((column) => column.node));
      this.columns = columns; // after what was there has lost the focus, which lights words
      this.maps = columns.flatMap((column) => column.map ?? []);
      for (const column of columns) {
        column.map?.load(column.planes.shown, state.scale);
        column.words.draw();
      }
      this.resize(state.cell ?? this.smallest((map) => map.natural()));
      if (focused) this.element.querySelector(`[data-control="${focused}"]`)?.focus();
      this.writeHash();
      this.element.dataset.ready = String(turn);
    }

    /* What is lit. */

    pin(word) {
      const old = this.state.pinned;
      const isSame = old && old.model === word.model && old.side === word.side && old.index === word.index;
      this.state.pinned = isSame ? null : word;
      this.light(this.state.pinned);
      this.writeHash();
    }

    /** Light what belongs to a word {model, side, index}; a source word is the same in every model. */
    light(word) {
      for (const column of this.columns ?? []) {
        const isOwn = word && (word.model === column.number || word.side === "source");
        const { pinned } = this.state;
        column.words.pin(pinned?.model === column.number ? pinned.side : null, pinned?.index);
        this.lightColumn(column, isOwn && word.index < column.view[`${word.side}_words`].length ? word : null);
      }
    }

    lightColumn(column, word) {
      const { planes, view } = column;
      const found = word && lightOf(column, word);
      column.words.light(found && { active: [word], ...found });
      if (planes) {
        for (const side of ["source", "target"]) {
          column.map.emphasise(side, (item) => Boolean(word) && Explain.isLit(item, side, word, found));
        }
      }
      column.reading.replaceChildren(word ? readingOf(column, word, found) : Explain.summary(column));
      if (word && word.model === column.number) {
        this.said.textContent = `${view[`${word.side}_words`][word.index]}: ${found.entries
          .slice(0, 3)
          .map((e) => `${e.label} ${percent(e.weight)}`)
          .join(", ")}`;
      }
    }

    lightCell(column, cell) {
      if (!cell) return this.light(this.state.pinned);
      const { rowSide, columnSide } = column.planes.shown;
      const range = (words) => (words ? Array.from({ length: words[1] - words[0] }, (_, i) => words[0] + i) : []);
      const active = range(cell.row.words).map((index) => ({ side: rowSide, index }));
      const weights = new Map(range(cell.column.words).map((index) => [index, cell.weight]));
      const { kind, words } = cell.column;
      const phrases = kind !== "token" && words ? [{ words, weight: cell.weight, level: 0 }] : [];
      return column.words.light({ active, side: columnSide, weights, phrases, areSourcePhrases: kind === "phrase" });
    }

    /* Moves. */

    choose(model, layer, head) {
      const { layers, heads } = this.state;
      layers[model] = layer;
      heads[model] = head;
      this.set({ layers, heads });
    }

    /** The next or previous one of something, in every model at once. */
    step(what, by) {
      const { state } = this;
      const turn = (value, count) => (value + by + count) % count;
      if (what === "sentence") return this.set({ sentence: turn(state.sentence, this.doc.sentences.length) });
      if (what === "use") return this.set({ use: this.uses[turn(this.uses.indexOf(state.use), this.uses.length)] });
      if (what === "scale") {
        const names = Object.keys(Explain.SCALES);
        return this.set({ scale: names[turn(names.indexOf(state.scale), names.length)] });
      }
      for (const { entry, head, view, number } of this.columns) {
        if (!entry) continue;
        const count = view.attention.filter((other) => other.use === entry.use).length;
        if (what === "layer") state.layers[number] = turn(entry.layer - 1, count) + 1;
        else state.heads[number] = turn(head ?? 0, entry.heads + 1) || null;
      }
      return this.render();
    }

    smallest(size) {
      return Math.min(...this.maps.map(size));
    }

    /** Draw all maps with cells of one size, so that they can be compared. */
    resize(cell) {
      for (const map of this.maps) map.resize(cell);
      this.light(this.state.pinned);
    }

    /** Larger or smaller cells; 0: the whole map at once. */
    zoom(by) {
      if (!this.maps.length) return;
      this.state.cell = by ? this.maps[0].next(by) : this.smallest((map) => map.fitted());
      this.resize(this.state.cell);
      this.writeHash();
    }

    /** Lay the page out for paper before it is printed: curves are measured, so the layout has to be that of the paper. */
    print(isOn) {
      if (!this.columns) return;
      this.element.classList.toggle("printing", isOn);
      const chosen = this.state.cell ?? this.smallest((map) => map.natural());
      this.resize(isOn ? this.smallest((map) => map.fitted(...PAPER)) : chosen);
    }

    key(event) {
      const { target, key } = event;
      if (
        event.ctrlKey ||
        event.metaKey ||
        event.altKey ||
        this.controls.help.open ||
        target.closest?.("input, textarea, select")
      )
        return;
      if (!this.columns || (!this.element.contains(target) && target !== document.body)) return;
      const acts = {
        s: () => this.step("sentence", 1),
        S: () => this.step("sentence", -1),
        u: () => this.step("use", 1),
        l: () => this.step("layer", 1),
        L: () => this.step("layer", -1),
        h: () => this.step("head", 1),
        H: () => this.step("head", -1),
        t: () => this.set({ spread: !this.state.spread }),
        c: () => this.step("scale", 1),
        e: () => this.save(),
        "+": () => this.zoom(1),
        "-": () => this.zoom(-1),
        f: () => this.zoom(0),
        "?": () => this.controls.help.showModal(),
        Escape: () => this.state.pinned && this.pin(this.state.pinned),
      };
      if (/^\d$/.test(key)) this.set({ heads: this.doc.models.map(() => Number(key) || null) });
      else if (Object.hasOwn(acts, key)) acts[key]();
      else return;
      event.preventDefault();
    }

    save() {
      const text = Explain.exportSvg(this);
      const url = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
      const link = html("a", { href: url, download: `explain-${this.sentence.line ?? this.state.sentence + 1}.svg` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(url), 10000);
    }
  }

  /**
   * Show a document in an element; whatever stood there is replaced. `hash: false` leaves the page's address alone.
   * Returns the page: `destroy()` takes it away.
   */
  Explain.show = (doc, element, options = {}) => {
    if (doc?.format !== 1) throw new Error(`a document of format ${doc?.format}: this page shows format 1`);
    element.explainPage?.destroy();
    element.explainPage = new Page(doc, element, options);
    return element.explainPage;
  };
})();

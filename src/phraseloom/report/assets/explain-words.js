/* The pair as words: point at one, and what it reads (or who reads it) lights up, joined by curves as wide as the weight. */
(() => {
  const { html, svg, percent, colour, ink } = Explain;
  const SIDES = ["source", "target"];
  const FAINT = 0.03; // weights below it are no light

  /** How dark a word is that has some weight; the same in every view, so that views can be compared. */
  Explain.wordShade = (weight) => (weight >= FAINT ? 0.05 + 0.8 * Math.sqrt(Math.min(1, weight)) : 0);

  const RIGHT_TO_LEFT = /[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u;
  /** The direction of a line: that of its first letter. */
  Explain.directionOf = (words) => (RIGHT_TO_LEFT.test(words.join("").match(/\p{L}/u)?.[0] ?? "") ? "rtl" : "ltr");

  /**
   * A view of one sentence. `on.point(side, index)` while the mouse or the focus is on a word (null: left), `on.pin(side, index)`
   * when it is chosen.
   */
  Explain.Words = class {
    constructor(view, languages, reference, on) {
      this.view = view;
      this.on = on;
      this.buttons = {};
      this.overlay = svg("svg", { class: "links", "aria-hidden": "true" });
      const lines = SIDES.map((side, i) => this.line(side, languages[i]));
      const isLong = SIDES.some((side) => view[`${side}_words`].length > 40);
      this.node = html(
        "div",
        { class: isLong ? "pair dense" : "pair" },
        this.overlay,
        lines,
        reference
          ? html(
              "div",
              { class: "line reference" },
              html("span", { class: "line-name" }, "Reference"),
              html("p", { dir: "auto", lang: languages[1] }, reference),
            )
          : null,
      );
      this.lit = null;
    }

    line(side, language) {
      const words = this.view[`${side}_words`];
      this.buttons[side] = words.map((word, i) =>
        html(
          "button",
          {
            type: "button",
            class: "word",
            tabindex: i ? -1 : 0,
            "aria-pressed": "false",
            onmouseenter: () => this.on.point(side, i),
            onmouseleave: () => this.on.point(null),
            onfocus: () => this.on.point(side, i),
            onblur: () => this.on.point(null),
            onclick: () => this.on.pin(side, i),
            onkeydown: (event) => this.move(event, side, i),
          },
          html("span", { class: "word-text", dir: "auto" }, word),
          html("span", { class: "word-weight", dir: "ltr", "aria-hidden": "true" }),
        ),
      );
      const name = side === "source" ? "Source" : this.view.given ? "Target (given)" : "Translation";
      const empty = words.length ? null : html("span", { class: "soft" }, "(nothing)");
      return html(
        "div",
        { class: `line ${side}` },
        html("span", { class: "line-name" }, html("b", {}, language), name),
        html(
          "div",
          {
            class: "line-words",
            role: "group",
            "aria-label": `${name} words`,
            lang: language,
            dir: Explain.directionOf(words),
          },
          this.buttons[side],
          empty,
        ),
      );
    }

    move(event, side, index) {
      const own = this.buttons[side];
      const other = this.buttons[side === "source" ? "target" : "source"];
      const right = Explain.directionOf(this.view[`${side}_words`]) === "rtl" ? -1 : 1;
      const step = { ArrowRight: right, ArrowLeft: -right, Home: -index, End: own.length - 1 - index }[event.key];
      let goal = null;
      if (step !== undefined) goal = own[index + step];
      else if (event.key === (side === "source" ? "ArrowDown" : "ArrowUp")) goal = other[this.linked(side, index)];
      else if (!["ArrowUp", "ArrowDown"].includes(event.key)) return;
      event.preventDefault();
      if (goal) this.focus(goal);
    }

    focus(button) {
      for (const side of SIDES) {
        if (this.buttons[side].includes(button))
          this.buttons[side].forEach((b) => {
            b.tabIndex = b === button ? 0 : -1;
          });
      }
      button.focus();
    }

    /** The word of the other side that a word is linked with, or the one at the same place. */
    linked(side, index) {
      const [own, other] = side === "source" ? [0, 1] : [1, 0];
      const link = this.view.word_links.find((l) => l[own] === index);
      const last = this.view[other ? "target_words" : "source_words"].length - 1;
      return link ? link[other] : Math.min(index, last);
    }

    /**
     * Light up: `active` [{side, index}…] are pointed at; `weights` word → weight on side `side`; `phrases` [{words, weight, level}]
     * have lines above them. null: put all lights out.
     */
    light(lit) {
      this.lit = lit;
      for (const side of SIDES) {
        this.buttons[side].forEach((button, i) => {
          const weight = lit && lit.side === side ? (lit.weights.get(i) ?? 0) : 0;
          const isActive = Boolean(lit && lit.active.some((a) => a.side === side && a.index === i));
          const shade = Explain.wordShade(weight);
          button.classList.toggle("active", isActive);
          button.style.background = shade && !isActive ? colour(shade) : "";
          button.style.color = shade && !isActive ? ink(shade) : "";
          button.lastChild.textContent = weight >= FAINT ? percent(weight) : "";
        });
      }
      this.draw();
    }

    pin(side, index) {
      for (const name of SIDES) {
        this.buttons[name].forEach((button, i) => {
          const pressed = name === side && i === index;
          button.setAttribute("aria-pressed", String(pressed));
        });
      }
    }

    /** The curves again, after the words have moved. */
    draw() {
      const frame = this.node.getBoundingClientRect();
      const boxes = Object.fromEntries(
        SIDES.map((side) => [side, this.buttons[side].map((b) => place(b.firstChild, frame))]),
      );
      this.overlay.replaceChildren(...(this.lit ? this.litShapes(boxes) : this.restShapes(boxes)));
    }

    restShapes(boxes) {
      const isOneRow = SIDES.every((side) => boxes[side].every((box) => Math.abs(box.top - boxes[side][0].top) < 4));
      if (!isOneRow) return [];
      return this.view.word_links.map(([s, t]) => curve(boxes.source[s], boxes.target[t], 1.2, "rest"));
    }

    litShapes(boxes) {
      const { active, side, phrases } = this.lit;
      const shapes = [];
      for (const { side: from, index } of active) {
        if (from === side) continue;
        for (const { words, weight } of Explain.endsOf(this.lit)) {
          const [end] = rowsOf(boxes[side].slice(...words));
          if (weight < FAINT || !end) continue;
          const [s, t] = from === "target" ? [end, boxes.target[index]] : [boxes.source[index], end];
          shapes.push(curve(s, t, 1 + 9 * weight, "lit"));
        }
        for (const [source, target] of this.phraseLinks(from, index)) {
          shapes.push(...frames(boxes.source.slice(...source)), ...frames(boxes.target.slice(...target)));
        }
      }
      for (const { words, weight, level } of phrases) {
        for (const run of rowsOf(boxes[side].slice(...words))) {
          const y = run.top - 7 - 4 * level;
          const shade = Math.min(1, 0.4 + weight);
          shapes.push(
            svg("line", { x1: run.left + 1, x2: run.right - 1, y1: y, y2: y, class: "bracket", stroke: colour(shade) }),
          );
        }
      }
      return shapes;
    }

    phraseLinks(side, index) {
      const own = side === "source" ? 0 : 1;
      return this.view.phrase_links.filter((link) => {
        const [first, end] = link[own];
        const isPhrase = link[0][1] - link[0][0] > 1 || link[1][1] - link[1][0] > 1;
        return isPhrase && first <= index && index < end;
      });
    }
  };

  function place(node, frame) {
    const box = node.getBoundingClientRect();
    return {
      left: box.left - frame.left,
      right: box.right - frame.left,
      top: box.top - frame.top,
      bottom: box.bottom - frame.top,
    };
  }

  function curve(source, target, width, kind) {
    if (!source || !target) return "";
    const [x1, y1] = [(source.left + source.right) / 2, source.bottom + 2];
    const [x2, y2] = [(target.left + target.right) / 2, target.top - 2];
    const bend = (y2 - y1) / 2;
    const d = `M${x1},${y1} C${x1},${y1 + bend} ${x2},${y2 - bend} ${x2},${y2}`;
    return svg("path", { d, class: `link ${kind}`, "stroke-width": width.toFixed(1) });
  }

  /** Boxes of words joined to one box a row of the page. */
  function rowsOf(boxes) {
    const rows = [];
    for (const box of boxes) {
      const last = rows.at(-1);
      if (last && Math.abs(last.top - box.top) < 4)
        Object.assign(last, { left: Math.min(last.left, box.left), right: Math.max(last.right, box.right) });
      else rows.push({ ...box });
    }
    return rows;
  }

  const frames = (boxes) =>
    rowsOf(boxes).map((box) =>
      svg("rect", {
        x: box.left - 3,
        y: box.top - 2,
        width: box.right - box.left + 6,
        height: box.bottom - box.top + 4,
        rx: 6,
        class: "phrase-frame",
      }),
    );
})();

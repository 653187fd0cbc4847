/* The heat map: a canvas of one pixel a cell for each quadrant, made larger by CSS; labels beside it that stay in sight. */
(() => {
  const { html, svg, percent, clip, colour, ink, rgb, textWidth } = Explain;
  const CELLS = [3, 4, 6, 8, 11, 14, 17, 20, 24, 28, 34];
  const READABLE = 14; // the smallest cell in which all labels stand
  const SMALLEST = 6; // the smallest cell that is chosen so that a map need not scroll sideways
  const NUMBERS = 24; // the smallest cell in which numbers stand
  const LONGEST = 26;
  const GAP = 8;

  /** Draw the cells of a quadrant on a canvas of one pixel each; what a query may not see stays empty. */
  Explain.paint = (canvas, plane, rowBlock, columnBlock, scale) => {
    const [height, width] = [rowBlock.end - rowBlock.first, columnBlock.end - columnBlock.first];
    Object.assign(canvas, { width, height });
    if (width === 0 || height === 0) return canvas; // a sentence too short for n-grams of this order
    const context = canvas.getContext("2d");
    const image = context.createImageData(width, height);
    const { dark } = Explain.SCALES[scale];
    for (let r = 0, at = 0; r < height; r += 1) {
      for (let c = 0; c < width; c += 1, at += 4) {
        const [row, column] = [rowBlock.first + r, columnBlock.first + c];
        if (plane.hidden(row, column)) continue;
        image.data.set(rgb(dark(plane.values[row * plane.width + column], plane.max)), at);
        image.data[at + 3] = 255;
      }
    }
    context.putImageData(image, 0, 0);
    return canvas;
  };

  /** `on.cell({row, column, weight} or null)` while a cell is pointed at, `on.pick(side, word)` when it is chosen. */
  Explain.Map = class {
    constructor(name, on) {
      this.on = on;
      this.at = null;
      this.note = html("p", { class: "map-note" });
      this.said = html("div", { class: "sr", "aria-live": "polite" });
      this.tip = html("div", { class: "tip", hidden: true, "aria-hidden": "true" });
      this.outline = html("div", { class: "outline", hidden: true });
      this.scroller = html("div", {
        class: "map",
        tabindex: 0,
        role: "application",
        "aria-roledescription": "heat map",
        "aria-label": name,
        onkeydown: (event) => this.key(event),
        onmousemove: (event) => this.hover(event),
        onmouseleave: () => this.show(null),
        onblur: () => this.show(null),
        onclick: () => this.pick(),
      });
      this.node = html("div", { class: "map-frame" }, this.scroller, this.note, this.said, this.tip);
    }

    /** Take a plane, to be drawn by `resize`. */
    load(plane, scale) {
      Object.assign(this, { plane, scale });
    }

    /** The largest cell at which the map fits, but one in which labels are legible, unless a smaller one brings all columns
     * into sight. */
    natural() {
      const { width, height } = this.plane;
      const [wide, high] = this.room(undefined, Math.max(520, window.innerHeight - 310));
      const narrow = CELLS.filter((cell) => cell <= 28 && cell * width <= wide);
      const fitting = narrow.filter((cell) => cell * height <= high).at(-1) ?? 0;
      const columns = narrow.filter((cell) => cell >= SMALLEST && cell <= READABLE).at(-1) ?? READABLE;
      return Math.max(fitting, columns);
    }

    /** The largest cell at which the whole map is in sight, or fits into a width and height in pixels. */
    fitted(width, height) {
      const [wide, high] = this.room(width, height);
      return Math.max(2, Math.min(28, Math.floor(Math.min(wide / this.plane.width, high / this.plane.height))));
    }

    /** Width and height for cells alone. */
    room(width = this.node.clientWidth, height = Math.max(420, window.innerHeight * 0.82)) {
      const gaps = (blocks) => GAP * blocks.length;
      return [
        width - this.depth("rows") - gaps(this.plane.columnBlocks) - 34,
        height - this.depth("columns") - gaps(this.plane.rowBlocks) - 30,
      ];
    }

    /** How much room the labels of an axis take. */
    depth(axis) {
      const widths = this.plane[axis].map((item) => 1.1 * textWidth(clip(item.label, LONGEST), 12)); // room for bold ones
      return Math.ceil(Math.max(axis === "rows" ? 62 : 24, ...widths)) + 10;
    }

    /** The next larger or smaller size of cells. */
    next(step) {
      return (
        (step > 0 ? CELLS.find((cell) => cell > this.cell) : CELLS.findLast((cell) => cell < this.cell)) ?? this.cell
      );
    }

    /** Draw with cells of a size in pixels. */
    resize(cell) {
      const { plane } = this;
      Object.assign(this, { cell, at: null });
      const [left, top] = [this.depth("rows"), this.depth("columns") + 18];
      const sizes = (blocks) => blocks.map((b) => `${(b.end - b.first) * cell}px`).join(" ");
      this.grid = html("div", {
        class: "map-grid",
        style: [
          `grid-template-columns:${left}px ${sizes(plane.columnBlocks)} auto`,
          `grid-template-rows:${top}px ${sizes(plane.rowBlocks)}`,
          `gap:${GAP}px;--labels:${left + GAP}px;--head:${top + GAP}px`,
        ].join(";"),
      });
      this.labels = { rows: new Array(plane.height), columns: new Array(plane.width) };
      this.quadrants = [];
      const { rows, columns } = Explain.USES[plane.use];
      this.grid.append(
        html("div", { class: "map-corner" }, html("span", {}, `${columns} →`), html("span", {}, `${rows} ↓`)),
      );
      for (const block of plane.columnBlocks) this.grid.append(this.columnLabels(block, top));
      this.grid.append(html("div", { class: "map-end" }));
      for (const rowBlock of plane.rowBlocks) {
        this.grid.append(this.rowLabels(rowBlock, left));
        for (const columnBlock of plane.columnBlocks) this.grid.append(this.quadrant(rowBlock, columnBlock));
        this.grid.append(
          html("div", { class: "block-name side" }, plane.rowBlocks.length > 1 ? rowBlock.name : ""),
        );
      }
      this.scroller.replaceChildren(this.grid);
      this.legend();
    }

    // The baseline of the label of cell i; a label that is wider than its cell begins inside the map, which the corner does not cover.
    middle(i) {
      return Math.max(11, (i + 0.5) * this.cell + 4);
    }

    columnLabels(block, height) {
      const width = (block.end - block.first) * this.cell;
      const texts = this.texts("columns", block, (i) => {
        const x = this.middle(i);
        return { x, y: height - 5, transform: `rotate(-90 ${x} ${height - 5})` };
      });
      const name = this.plane.columnBlocks.length > 1 || block.kind !== "token" ? block.name : "";
      return html(
        "div",
        { class: "map-columns" },
        html("span", { class: "block-name" }, name),
        svg("svg", { width, height, "aria-hidden": "true" }, texts),
      );
    }

    rowLabels(block, width) {
      const height = (block.end - block.first) * this.cell;
      const texts = this.texts("rows", block, (i) => ({
        x: width - 6,
        y: this.middle(i),
        "text-anchor": "end",
      }));
      return html("div", { class: "map-rows" }, svg("svg", { width, height, "aria-hidden": "true" }, texts));
    }

    texts(axis, block, place) {
      const step = Math.ceil(11 / this.cell);
      return this.plane[axis].slice(block.first, block.end).map((item, i) => {
        const text = svg("text", { ...place(i), class: i % step ? "label rare" : "label" }, clip(item.label, LONGEST));
        this.labels[axis][block.first + i] = text;
        return text;
      });
    }

    quadrant(rowBlock, columnBlock) {
      const { cell } = this;
      const [width, height] = [(columnBlock.end - columnBlock.first) * cell, (rowBlock.end - rowBlock.first) * cell];
      const canvas = Explain.paint(
        html("canvas", { "aria-hidden": "true" }),
        this.plane,
        rowBlock,
        columnBlock,
        this.scale,
      );
      canvas.style.cssText = `width:${width}px;height:${height}px`;
      const node = html(
        "div",
        { class: "quadrant", style: `--cell:${cell}px;width:${width}px;height:${height}px` },
        canvas,
      );
      if (cell >= 8) node.append(html("div", { class: "grid-lines" }));
      if (cell >= NUMBERS) node.append(this.numbers(rowBlock, columnBlock, width, height));
      this.quadrants.push({ node, rowBlock, columnBlock });
      return node;
    }

    numbers(rowBlock, columnBlock, width, height) {
      const texts = [];
      const { dark } = Explain.SCALES[this.scale];
      for (let r = rowBlock.first; r < rowBlock.end; r += 1) {
        for (let c = columnBlock.first; c < columnBlock.end; c += 1) {
          const weight = this.plane.values[r * this.plane.width + c];
          if (weight < 0.05) continue;
          const [x, y] = [(c - columnBlock.first + 0.5) * this.cell, (r - rowBlock.first + 0.5) * this.cell + 3.5];
          texts.push(svg("text", { x, y, fill: ink(dark(weight, this.plane.max)) }, Math.round(weight * 100)));
        }
      }
      return svg("svg", { class: "numbers", width, height, "aria-hidden": "true" }, texts);
    }

    legend() {
      const { label, end, dark } = Explain.SCALES[this.scale];
      const most = end(this.plane.max);
      const parts = Array.from({ length: 24 }, (_, i) => {
        const shade = dark((most * (i + 0.5)) / 24, this.plane.max);
        return html("span", { style: `background:${colour(Math.min(1, shade))}` });
      });
      this.note.replaceChildren(
        html("span", { class: "legend", "aria-hidden": "true" }, parts),
        ` 0 to ${percent(most)} of a query's attention (${label})`,
        this.cell >= NUMBERS ? "; numbers in %, from 5" : "",
        this.scroller.scrollWidth > this.scroller.clientWidth + 1 ? "; scroll sideways for more columns, or choose fit" : "",
      );
    }

    hover(event) {
      for (const { node, rowBlock, columnBlock } of this.quadrants) {
        const box = node.getBoundingClientRect();
        const [x, y] = [event.clientX - box.left, event.clientY - box.top];
        if (x < 0 || y < 0 || x >= box.width || y >= box.height) continue;
        const row = rowBlock.first + Math.min(rowBlock.end - rowBlock.first - 1, Math.floor(y / this.cell));
        const column = columnBlock.first + Math.min(columnBlock.end - columnBlock.first - 1, Math.floor(x / this.cell));
        if (!event.target.closest(".map-rows, .map-columns, .map-corner")) this.show({ row, column });
        return;
      }
      this.show(null);
    }

    key(event) {
      const step = {
        ArrowUp: [-1, 0],
        ArrowDown: [1, 0],
        ArrowLeft: [0, -1],
        ArrowRight: [0, 1],
        Home: [0, -Infinity],
        End: [0, Infinity],
      }[event.key];
      if (event.key === "Enter") this.pick();
      if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      const { height, width } = this.plane;
      const limit = (value, length) => Math.max(0, Math.min(length - 1, value));
      const { row, column } = this.at ?? { row: step[0] > 0 ? -1 : 0, column: step[1] > 0 ? -1 : 0 };
      this.show({ row: limit(row + step[0], height), column: limit(column + step[1], width) });
      this.reveal();
      const item = this.item();
      const weight = item.hidden ? "not visible" : percent(item.weight);
      this.said.textContent = `${item.row.label} reads ${item.column.label}: ${weight}`;
    }

    item() {
      const { row, column } = this.at;
      const { plane } = this;
      const weight = plane.values[row * plane.width + column];
      return { row: plane.rows[row], column: plane.columns[column], weight, hidden: plane.hidden(row, column) };
    }

    pick() {
      if (!this.at) return;
      const { row } = this.item();
      if (row.words) this.on.pick(this.plane.rowSide, row.words[0]);
    }

    /** Point at a cell, or at none. */
    show(at) {
      if (at?.row === this.at?.row && at?.column === this.at?.column) return;
      if (this.at) this.mark(this.at, false);
      this.at = at;
      this.tip.hidden = this.outline.hidden = !at;
      if (at) {
        this.mark(at, true);
        this.point();
      }
      this.on.cell(at ? this.item() : null);
    }

    mark({ row, column }, isOn) {
      this.label("rows", row, "on", isOn);
      this.label("columns", column, "on", isOn);
    }

    /** Give a label a class; where labels are crowded it comes before its neighbours. */
    label(axis, i, name, isOn) {
      const text = this.labels[axis][i];
      text.classList.toggle(name, isOn);
      if (isOn && this.cell < READABLE) text.parentNode.append(text);
    }

    /** The outline of the cell that is pointed at, and the tip beside it. */
    point() {
      const { row, column } = this.at;
      const found = this.quadrants.find(
        (q) =>
          q.rowBlock.first <= row &&
          row < q.rowBlock.end &&
          q.columnBlock.first <= column &&
          column < q.columnBlock.end,
      );
      const [x, y] = [(column - found.columnBlock.first) * this.cell, (row - found.rowBlock.first) * this.cell];
      this.outline.style.cssText = `left:${x - 2}px;top:${y - 2}px;width:${this.cell + 4}px;height:${this.cell + 4}px`;
      found.node.append(this.outline);
      const item = this.item();
      this.tip.replaceChildren(
        html("strong", {}, item.hidden ? "not visible" : percent(item.weight)),
        html("span", {}, html("bdi", {}, item.row.label), " reads ", html("bdi", {}, item.column.label)),
        html("small", {}, `${item.row.kind} → ${item.column.kind}`),
      );
      const box = this.outline.getBoundingClientRect();
      const tip = this.tip.getBoundingClientRect();
      const left = box.right + 8 + tip.width < window.innerWidth ? box.right + 8 : box.left - 8 - tip.width;
      const below = box.bottom + 8 + tip.height < window.innerHeight;
      this.tip.style.cssText = `left:${Math.max(4, left)}px;top:${below ? box.bottom + 6 : box.top - 6 - tip.height}px`;
    }

    /** Scroll the cell that is pointed at out from under the labels. */
    reveal() {
      const box = this.outline.getBoundingClientRect();
      const frame = this.scroller.getBoundingClientRect();
      const [left, top] = [frame.left + this.depth("rows") + GAP, frame.top + this.depth("columns") + 18 + GAP];
      const over = (low, high, begin, end) => (low < begin ? low - begin : high > end ? high - end : 0);
      this.scroller.scrollBy(
        over(box.left, box.right, left, frame.right - 20),
        over(box.top, box.bottom, top, frame.bottom - 20),
      );
      this.point();
    }

    /** Make the labels of tokens and source phrases of a side bold. */
    emphasise(side, isLit) {
      const { plane } = this;
      for (const [axis, axisSide] of [
        ["rows", plane.rowSide],
        ["columns", plane.columnSide],
      ]) {
        if (axisSide !== side) continue;
        plane[axis].forEach((item, i) => {
          const lit = item.words !== null && !item.kind.endsWith("gram") && isLit(item);
          if (lit !== this.labels[axis][i].classList.contains("lit")) this.label(axis, i, "lit", lit);
        });
      }
    }
  };
})();

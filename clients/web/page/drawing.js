/**
 * A small canvas for drawing with a pointer or a keyboard, shown in grey.
 * @module
 */

export const SIDE = 28;
const PEN = 1.9;

/** Show levels from 0 (paper) to 1 (ink). @param {HTMLCanvasElement} canvas @param {ArrayLike<number>} levels */
export function show(canvas, levels) {
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const image = context.createImageData(SIDE, SIDE);
  for (let i = 0; i < SIDE * SIDE; i++) {
    const grey = 255 * (1 - Math.min(1, Math.max(0, levels[i])));
    image.data.set([grey, grey, grey, 255], 4 * i);
  }
  context.putImageData(image, 0, 0);
}

/** A drawing, as levels of ink. */
export class Drawing {
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.canvas = canvas;
    this.ink = new Float32Array(SIDE * SIDE);
    this.cursor = { x: SIDE / 2, y: SIDE / 2 };
    this.isLocked = false;
    /** @type {{x: number, y: number} | null} */
    this.last = null;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.last = this.#placeOf(event);
      this.#dab(this.last);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (this.last) this.#strokeTo(this.#placeOf(event));
    });
    for (const end of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(end, () => (this.last = null));
    }
    canvas.addEventListener("keydown", (event) => this.#keyed(event));
    canvas.addEventListener("blur", () => show(canvas, this.ink));
    show(canvas, this.ink);
  }

  get isEmpty() {
    return this.ink.every((level) => level === 0);
  }

  clear() {
    this.ink.fill(0);
    show(this.canvas, this.ink);
  }

  /** @param {PointerEvent} event */
  #placeOf(event) {
    const box = this.canvas.getBoundingClientRect();
    return {
      x: ((event.clientX - box.left) / box.width) * SIDE,
      y: ((event.clientY - box.top) / box.height) * SIDE,
    };
  }

  /** @param {{x: number, y: number}} to */
  #strokeTo(to) {
    const from = this.last ?? to;
    const steps = 1 + Math.ceil(2 * Math.hypot(to.x - from.x, to.y - from.y));
    for (let step = 1; step <= steps; step++) {
      const part = step / steps;
      this.#dab({ x: from.x + part * (to.x - from.x), y: from.y + part * (to.y - from.y) });
    }
    this.last = to;
  }

  /** @param {{x: number, y: number}} at */
  #dab({ x, y }) {
    if (this.isLocked) return;
    for (let row = 0; row < SIDE; row++) {
      for (let column = 0; column < SIDE; column++) {
        const level = Math.min(1, PEN - Math.hypot(column + 0.5 - x, row + 0.5 - y));
        const i = row * SIDE + column;
        if (level > this.ink[i]) this.ink[i] = level;
      }
    }
    show(this.canvas, this.ink);
  }

  /** Arrows move a cursor, space draws under it. @param {KeyboardEvent} event */
  #keyed(event) {
    /** @type {Record<string, [number, number]>} */
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const move = moves[event.key];
    if (!move && event.key !== " ") return;
    event.preventDefault();
    if (move) {
      this.cursor.x = Math.min(SIDE - 0.5, Math.max(0.5, this.cursor.x + move[0]));
      this.cursor.y = Math.min(SIDE - 0.5, Math.max(0.5, this.cursor.y + move[1]));
    } else {
      this.#dab(this.cursor);
    }
    const shown = Float32Array.from(this.ink);
    const at = Math.floor(this.cursor.y) * SIDE + Math.floor(this.cursor.x);
    shown[at] = shown[at] > 0.5 ? 0.35 : 0.65;
    show(this.canvas, shown);
  }
}

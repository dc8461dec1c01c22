/**
 * Products modulo X^n + 1 in doubles, by the right-angle convolution; n is a power of two.
 * @module
 */

/** A ring of degree n, with its roots of unity. */
export class NegacyclicRing {
  /** @param {number} n */
  constructor(n) {
    const half = n / 2;
    const bits = Math.log2(half);
    this.n = n;
    this.twist = complexes(half, (i) => (Math.PI * i) / n);
    this.roots = complexes(half / 2, (i) => (-2 * Math.PI * i) / half);
    this.reversed = Uint32Array.from({ length: half }, (_, i) =>
      parseInt([...i.toString(2).padStart(bits, "0")].reverse().join(""), 2),
    );
    this.scratch = new Float64Array(n);
  }

  /** The transform of a polynomial. @param {ArrayLike<number>} polynomial @param {Float64Array} [out] */
  forward(polynomial, out = new Float64Array(this.n)) {
    const { n, twist, reversed } = this;
    const half = n / 2;
    for (let i = 0; i < half; i++) {
      const at = 2 * reversed[i];
      const [low, high] = [polynomial[i], polynomial[i + half]];
      out[at] = low * twist[2 * i] - high * twist[2 * i + 1];
      out[at + 1] = low * twist[2 * i + 1] + high * twist[2 * i];
    }
    this.#transform(out, 1);
    return out;
  }

  /** The product of two transforms, as integers. @param {Float64Array} a @param {Float64Array} b @param {Float64Array} out */
  product(a, b, out) {
    const { n, twist, reversed, scratch } = this;
    const half = n / 2;
    for (let i = 0; i < half; i++) {
      const at = 2 * reversed[i];
      const j = 2 * i;
      scratch[at] = a[j] * b[j] - a[j + 1] * b[j + 1];
      scratch[at + 1] = a[j] * b[j + 1] + a[j + 1] * b[j];
    }
    this.#transform(scratch, -1);
    for (let i = 0; i < half; i++) {
      const real = scratch[2 * i] / half;
      const imaginary = scratch[2 * i + 1] / half;
      out[i] = Math.round(real * twist[2 * i] + imaginary * twist[2 * i + 1]);
      out[i + half] = Math.round(imaginary * twist[2 * i] - real * twist[2 * i + 1]);
    }
  }

  /** Decimation in time, in place, after the bit reversal. @param {Float64Array} x @param {1 | -1} sign */
  #transform(x, sign) {
    const count = this.n / 2;
    for (let length = 2; length <= count; length <<= 1) {
      const half = length >> 1;
      const step = count / length;
      for (let j = 0; j < half; j++) {
        const cosine = this.roots[2 * j * step];
        const sine = sign * this.roots[2 * j * step + 1];
        for (let i = 2 * j; i < 2 * count; i += 2 * length) {
          const k = i + 2 * half;
          const real = x[k] * cosine - x[k + 1] * sine;
          const imaginary = x[k] * sine + x[k + 1] * cosine;
          x[k] = x[i] - real;
          x[k + 1] = x[i + 1] - imaginary;
          x[i] += real;
          x[i + 1] += imaginary;
        }
      }
    }
  }
}

/** Points on the unit circle, real part first. @param {number} count @param {(i: number) => number} angle */
function complexes(count, angle) {
  const out = new Float64Array(2 * count);
  for (let i = 0; i < count; i++) {
    out[2 * i] = Math.cos(angle(i));
    out[2 * i + 1] = Math.sin(angle(i));
  }
  return out;
}

// SPDX-License-Identifier: Apache-2.0
// Matrices as arrays of rows, x[row][column], and the operations that the model needs.
// Weights are stored in float32; sums are in float64, as every number in JavaScript.

// a b: [T, D] x [D, F] -> [T, F]. Two rows of b at a time: faster, as `out` is written less often.
function matmul(a, b) {
  return a.map(row => {
    const width = b[0].length, out = new Float64Array(width), even = row.length & ~1;
    for (let d = 0; d < even; d += 2) {
      const x = row[d], y = row[d + 1], bx = b[d], by = b[d + 1];
      for (let f = 0; f < width; f++) out[f] += x * bx[f] + y * by[f];
    }
    if (even < row.length) b[even].forEach((value, f) => { out[f] += row[even] * value; });
    return out;
  });
}

function dot(x, y) {
  let total = 0;
  for (let d = 0; d < x.length; d++) total += x[d] * y[d];
  return total;
}

// a b^T: [T, D] x [S, D] -> [T, S]
function dotProducts(a, b) {
  return a.map(row => {
    const out = new Float64Array(b.length);
    for (let s = 0; s < b.length; s++) out[s] = dot(row, b[s]);
    return out;
  });
}

function addVectors(x, y) {
  return x.map((value, d) => value + y[d]);
}

// Sum of matrices of one shape.
function addMatrices(first, ...others) {
  return first.map((row, t) => others.reduce((total, other) => addVectors(total, other[t]), row));
}

// Of one row; -Infinity has weight 0.
function softmax(row) {
  const largest = row.reduce((a, b) => Math.max(a, b));
  const exponentials = row.map(value => Math.exp(value - largest));
  const total = exponentials.reduce((a, b) => a + b);
  return exponentials.map(value => value / total);
}

function logSoftmax(row) {
  const largest = row.reduce((a, b) => Math.max(a, b));
  const logTotal = Math.log(row.reduce((total, value) => total + Math.exp(value - largest), 0));
  return row.map(value => value - largest - logTotal);
}

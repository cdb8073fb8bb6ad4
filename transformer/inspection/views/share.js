// SPDX-License-Identifier: Apache-2.0
// The numbers of packed shares, see packing.py: of 87 characters the first 40 stand alone.
const codes = {};
for (let code = 33, n = 0; code < 127; code++)
  if (![34, 38, 40, 47, 58, 60, 92].includes(code)) codes[code] = n++;
const unpacked = packed => {
  const values = [];
  for (let n = 0; n < packed.length; n++) {
    const code = codes[packed.charCodeAt(n)];
    values.push((code < 40 ? code : 40 + (code - 40) * 87 + codes[packed.charCodeAt(++n)]) / 4128);
  }
  return values;
};

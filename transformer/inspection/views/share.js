// SPDX-License-Identifier: Apache-2.0
// The nth number of packed shares: two characters each, see packing.py.
const codes = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const share = (packed, n) =>
  (codes.indexOf(packed[2 * n]) * 64 + codes.indexOf(packed[2 * n + 1])) / 4095;

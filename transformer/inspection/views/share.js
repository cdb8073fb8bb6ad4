// SPDX-License-Identifier: Apache-2.0
// The numbers of packed shares, see packing.py: of these 87 characters the first 40 stand alone.
const codes = "!#$%')*+,-.0123456789;=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]^_`abcdefghijklmnopqrstuvwxyz{|}~";
const at = one => codes.indexOf(one);
const unpacked = packed => (packed?.match(/[!-N]|../g) ?? []).map(([a, b]) => (b ? at(a) * 87 - 3440 + at(b) : at(a)) / 4128);

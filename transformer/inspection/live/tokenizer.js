// SPDX-License-Identifier: Apache-2.0
// Subwords by byte-pair encoding (Sennrich et al. 2016), as SentencePiece computes it.

const WORD_BEGIN = "\u2581";  // stands for a space; every word begins with it
const UNKNOWN_TEXT = " \u2047 ";

// pieces: the subword of each id, earlier merges first; special: {pad_id, bos_id, eos_id, unk_id}
function makeTokenizer(pieces, special) {
  const specialIds = Object.values(special);
  const ids = new Map();
  pieces.forEach((piece, id) => {
    if (!specialIds.includes(id)) ids.set(piece, id);
  });

  // Runs of spaces become one, spaces at the ends go, and WORD_BEGIN replaces every space.
  function normalize(text) {
    const words = text.replace(/^ +| +$/g, "").replace(/ +/g, WORD_BEGIN);
    return words && (WORD_BEGIN + words).replace(/\u2581+$/, "");
  }

  // Merge the adjacent pair whose subword comes first in the vocabulary, until there is none.
  function segment(text) {
    const parts = [...normalize(text.toWellFormed?.() ?? text)];
    for (;;) {
      let best = -1, rank = Infinity;
      for (let i = 0; i + 1 < parts.length; i++) {
        const id = ids.get(parts[i] + parts[i + 1]);
        if (id < rank) [best, rank] = [i, id];
      }
      if (best < 0) return parts;
      parts.splice(best, 2, parts[best] + parts[best + 1]);
    }
  }

  // Ids and subwords of a text, EOS last. A run of unknown characters is one token.
  function encode(text) {
    const tokens = [];
    for (const piece of segment(text)) {
      const id = ids.get(piece) ?? special.unk_id, last = tokens.at(-1);
      if (id === special.unk_id && last?.id === id) last.piece += piece;
      else tokens.push({id, piece});
    }
    return [...tokens, {id: special.eos_id, piece: pieces[special.eos_id]}];
  }

  // The text of ids, up to EOS.
  function decode(tokens) {
    let text = "";
    for (const id of tokens) {
      if (id === special.eos_id) break;
      if (id === special.unk_id) text += UNKNOWN_TEXT;
      else if (!specialIds.includes(id)) {
        // The space before the first word is no part of the text.
        const piece = text ? pieces[id] : pieces[id].replace(WORD_BEGIN, "");
        text += piece.replaceAll(WORD_BEGIN, " ");
      }
    }
    return text;
  }

  return {encode, decode};
}

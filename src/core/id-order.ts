/**
 * The order of ids' UTF-8 bytes: that of both databases, of listings and of a gather's members. The order of JavaScript's
 * texts is the same but for the characters beyond U+FFFF, whose halves have smaller numbers than U+E000 to U+FFFF.
 */
export function compareIds(a: string, b: string): number {
  const length = Math.min(a.length, b.length);
  for (let i = 0; i < length; i++) {
    const [x, y] = [a.charCodeAt(i), b.charCodeAt(i)];
    if (x !== y) return rank(x) - rank(y);
  }
  return a.length - b.length;
}

function rank(unit: number): number {
  if (unit < 0xd800) return unit;
  return unit < 0xe000 ? unit + 0x2000 : unit - 0x800;
}

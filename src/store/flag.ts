/** Yes or no, as it is read: a database without booleans holds 1 or 0. */
export type Flag = boolean | 0 | 1;

export function isYes(flag: Flag): boolean {
  return flag === true || flag === 1;
}

import type { Dialect } from "../sql/dialect.ts";

export function dialectOf(s: string): Dialect {
  return {
    table: (name) => `${s}.${name}`,
    in: (value, type, list) => `${value} = any(cast(${list} as ${type}[]))`,
    items: (type, list) =>
      `(select place - 1 as place, value from unnest(cast(${list} as ${type}[])) with ordinality as item (value, place))`,
    greatest: (a, b) => `greatest(${a}, ${b})`,
    isFalse: (column) => `not ${column}`,
    byBytes: (text) => `${text} collate "C"`,
    jsonRows: (columns, from, order) =>
      `(select cast(json_agg(json_build_array(${columns.join(", ")}) order by ${order}) as text) from ${from})`,
    nextKey: (table) => `select nextval('${s}.${{ builds: "build" }[table]}') as next`,
    running: `${s}.running`,
  };
}

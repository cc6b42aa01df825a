import type { Dialect } from "../sql/dialect.ts";

export function dialectOf(s: string): Dialect {
  return {
    table: (name) => `${s}.${name}`,
    in: (value, type, list) => `${value} = any(cast(${list} as ${type}[]))`,
    items: (type, list) =>
      `(select place - 1 as place, value from unnest(cast(${list} as ${type}[])) with ordinality as item (value, place))`,
    rows: (json, columns) => {
      const typed = Object.entries(columns).map(([name, type]) => `"${name}" ${type}`);
      return `(select * from json_to_recordset(cast(${json} as json)) as item (${typed}))`;
    },
    indexed: () => "",
    firstRow: (table, as, which) => `cross join lateral (select one.* from ${table} as one ${which} limit 1) as ${as}`,
    inOrder: (...statements) => {
      const steps = statements.slice(0, -1).map((statement, i) => `step${i} as (${statement})`);
      return { before: [], last: `with ${steps} ${statements.at(-1)}` };
    },
    fence: `nextval('${s}.fence')`,
    locking: " for no key update",
    greatest: (a, b) => `greatest(${a}, ${b})`,
    isFalse: (column) => `not ${column}`,
    byBytes: (text) => `${text} collate "C"`,
    jsonRows: (columns, from, order) =>
      `(select cast(json_agg(json_build_array(${columns.join(", ")}) order by ${order}) as text) from ${from})`,
    nextKey: (table) => `select nextval('${s}.${{ builds: "build" }[table]}') as next`,
    running: `${s}.running`,
    heldBy: (processes) => `(select cast(coalesce(sum(at_work), 0) as bigint) from ${s}.claims
      where holder = any(cast(${processes} as bigint[])))`,
  };
}

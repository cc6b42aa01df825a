import { type Dialect, pairOf } from "../sql/dialect.ts";

export const DIALECT: Dialect = {
  table: (name) => `holdfast_${name}`,
  in: (value, _, list) => `${value} in (select value from json_each(${list}))`,
  items: (_, list) => `(select key as place, value from json_each(${list}))`,
  rows: (json, columns) =>
    `(select ${Object.keys(columns).map((name) => `value ->> '${name}' as "${name}"`)} from json_each(${json}))`,
  // Left to itself, SQLite reads a whole segment by its primary key.
  indexed: (index) => ` indexed by holdfast_${index}`,
  firstRow: (table, as, which) =>
    `cross join ${table} as ${as} on ${as}.key = (select one.key from ${table} as one ${which} limit 1)`,
  inOrder: (...statements) => ({ before: statements.slice(0, -1), last: statements.at(-1) as string }),
  each: (columns, write) => {
    const names = Object.keys(columns);
    return write({
      value: (name) => `:${name}`,
      values: names.map((name) => `:${name}`).join(", "),
      from: (tables) => (tables === undefined ? "" : `from ${tables}`),
      using: "",
      is: (table, ...same) =>
        same
          .map(pairOf)
          .map(([column, name]) => `${table}.${column} = :${name}`)
          .join(" and "),
    });
  },
  fence: ":commit",
  locking: "",
  lockingOf: () => "",
  // SQLite's own `max` is null if one of them is.
  greatest: (a, b) => `max(${a}, coalesce(${b}, ${a}))`,
  least: (a, b) => `min(${a}, ${b})`,
  isFalse: (column) => `${column} = 0`,
  byBytes: (text) => text,
  jsonRows: (columns, from, order) =>
    `(select json_group_array(json_array(${columns.join(", ")}) order by ${order}) from ${from})`,
  overriding: "",
  // What was removed is not given out again.
  nextKey: (table) => `select coalesce((select seq from sqlite_sequence where name = 'holdfast_${table}'), 0) + 1 as next`,
  running: "(select key, fence, holder, lease, expires_at, expires_at as bound from holdfast_jobs where state = 'running')",
  heldBy: (processes) => `(select count(*) from holdfast_jobs
    where state = 'running' and holder in (select value from json_each(${processes})))`,
};

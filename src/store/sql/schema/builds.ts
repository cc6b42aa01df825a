import type { SchemaDialect } from "./tables.ts";

/** SQL: whether an update of a build's state is one that core does not allow. A test compares both. */
export const IS_FORBIDDEN_MOVE = `old.state <> new.state and (old.state || '>' || new.state) not in (
  'PENDING>ACTIVE', 'PENDING>ABANDONED',
  'ACTIVE>SUCCESS', 'ACTIVE>FAILED', 'ACTIVE>CRASHED', 'ACTIVE>BUDGET_PAUSE', 'ACTIVE>ABANDONED',
  'CRASHED>ACTIVE', 'CRASHED>ABANDONED',
  'BUDGET_PAUSE>ACTIVE', 'BUDGET_PAUSE>FAILED', 'BUDGET_PAUSE>ABANDONED')`;

export function buildTables(dialect: SchemaDialect): string {
  const { table, index, long, flag, no, bytes, serial, sequence, checksum, byKey, byRow } = dialect;
  return `
-- On PostgreSQL the row is the lock of its build: it comes before any other row of the build. Each end of a work item changes
-- it, in place.
create table ${table("builds")} (
  key              ${sequence("build")},
  id               ${bytes} not null unique,
  pipeline         ${bytes} not null,
  queue            text not null,
  state            ${bytes} not null check (
                     state in ('PENDING', 'ACTIVE', 'SUCCESS', 'FAILED', 'CRASHED', 'BUDGET_PAUSE', 'ABANDONED')),
  reason           text not null,
  note             text,
  -- The number of its last transition.
  seq              integer not null default 0,
  hash             text not null,
  description      text not null,
  options          text not null,
  -- Money in millionths; null: no limit.
  budget_micros    ${long},
  budget_tokens    ${long},
  spent_micros     ${long} not null default 0,
  spent_tokens     ${long} not null default 0,
  reserved_micros  ${long} not null default 0,
  reserved_tokens  ${long} not null default 0,
  approved         ${flag} not null default ${no},
  blocked          text,
  refused_micros   ${long} not null default 0,
  refused_tokens   ${long} not null default 0,
  max_failures     ${long},
  round            integer not null default 0,
  listing          text not null default 'running' check (listing in ('running', 'done', 'failed')),
  open             ${long} not null default 0 check (open >= 0),
  failed           ${long} not null default 0,
  created_at       ${long} not null,
  finished_at      ${long}${checksum}
)${byRow("fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02")};
create index ${index("builds_pipeline")} on ${table("builds")} (pipeline, key);
-- A pipeline has one build that has not ended.
create unique index ${index("builds_unended")} on ${table("builds")} (pipeline)
  where state not in ('SUCCESS', 'FAILED', 'ABANDONED');

create table ${table("build_stages")} (
  build   ${long} not null,
  place   integer not null,
  stage   ${bytes} not null,
  ran     ${long} not null default 0,
  cached  ${long} not null default 0,
  failed  ${long} not null default 0,
  passed  ${long} not null default 0,
  open    ${long} not null default 0 check (open >= 0),
  primary key (build, stage)
)${byKey("fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02")};

-- The orchestrator of each pipeline: one process at a time. Every write of an orchestrator names the token.
create table ${table("leads")} (
  pipeline      ${bytes} primary key,
  build         ${long} not null,
  token         text not null,
  holder        ${long} not null,
  pid           integer not null,
  host          text not null,
  program       text not null,
  program_hash  text not null,
  acquired_at   ${long} not null,
  beat_at       ${long} not null
)${byKey("fillfactor = 50")};

create table ${table("targets")} (
  pipeline     ${bytes} not null,
  segment      integer not null,
  path         ${bytes} not null,
  id           ${bytes} not null,
  parent       ${bytes},
  hash         ${bytes} not null,
  fingerprint  ${bytes},
  -- The input of the first stage, here or in an artifact.
  value_hash   ${bytes} not null,
  value_text   text,
  value_file   ${bytes},
  value_size   ${long} not null default 0,
  seen         ${long} not null,
  done         ${bytes},
  completed    text not null,
  grouping     ${bytes},
  member       ${bytes},
  -- The key of the FAILED result.
  failure      ${long},
  rev          ${long} not null${checksum},
  primary key (pipeline, segment, path)
)${byKey("fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05")};
create index ${index("targets_children")} on ${table("targets")} (pipeline, segment, parent, path) where parent is not null;
create index ${index("targets_groups")} on ${table("targets")} (pipeline, segment, grouping, path)
  where member is not null and grouping is not null;

-- One row for each (build, stage, target) that was run. A result that the target had before and reuses has no row. REUSED: a
-- copy of an earlier result, or of another target's. GONE: there is no result from this build on. A success that was superseded
-- in its own build has its negative key as build, because others may have reused it.
create table ${table("results")} (
  key          ${serial},
  build        ${long} not null,
  pipeline     ${bytes} not null,
  stage        ${bytes} not null,
  path         ${bytes} not null,
  target       ${bytes} not null,
  state        ${bytes} not null check (state = 'SUCCESS' or state = 'FAILED' or state = 'REUSED' or state = 'GONE'),
  hash         ${bytes} not null,
  parts        text,
  output_hash  ${bytes} not null,
  output_text  text,
  output_file  ${bytes},
  output_size  ${long} not null default 0,
  micros       ${long} not null default 0,
  tokens       ${long} not null default 0,
  error        text,
  at           ${long} not null,
  -- 1: other targets may reuse it.
  shared       ${long} not null default 0${checksum}
)${byRow("autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05")};
-- By path, which most look-ups have: an index by the hash alone would write a page for each result.
create index ${index("results_context")} on ${table("results")} (pipeline, stage, path, hash, key) where state = 'SUCCESS';
create index ${index("results_hash")} on ${table("results")} (hash, key) where state = 'SUCCESS' and shared = 1;
create unique index ${index("results_target")} on ${table("results")} (pipeline, stage, path, build);
create index ${index("results_failed")} on ${table("results")} (build, key) where state = 'FAILED';

create table ${table("artifacts")} (
  build  ${long} not null,
  stage  ${bytes} not null,
  path   ${bytes} not null,
  name   ${bytes} not null,
  hash   ${bytes} not null,
  size   ${long} not null,
  primary key (build, stage, path, name)
)${byKey()};
create index ${index("artifacts_hash")} on ${table("artifacts")} (hash);

-- Work items that have not ended. estimate: reserved for the running attempt; cost: reported by it; charged: of earlier
-- attempts.
create table ${table("work")} (
  job              ${long} primary key,
  build            ${long} not null,
  kind             ${bytes} not null check (kind = 'listing' or kind = 'stage' or kind = 'remove'),
  stage            ${bytes} not null,
  segment          integer not null,
  path             ${bytes} not null,
  estimate_micros  ${long} not null default 0,
  estimate_tokens  ${long} not null default 0,
  cost_micros      ${long} not null default 0,
  cost_tokens      ${long} not null default 0,
  charged_micros   ${long} not null default 0,
  charged_tokens   ${long} not null default 0
)${byRow(
    "fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05",
  )};
-- A target is at one stage at a time.
create unique index ${index("work_target")} on ${table("work")} (build, segment, path, stage, kind);

create table ${table("stage_costs")} (
  pipeline  ${bytes} not null,
  stage     ${bytes} not null,
  attempts  ${long} not null,
  micros    ${long} not null,
  tokens    ${long} not null,
  primary key (pipeline, stage)
)${byKey("fillfactor = 50")};

-- Confirmation tokens, hashed.
create table ${table("tokens")} (
  hash         ${bytes} primary key,
  build        ${long} not null,
  pause        integer not null,
  minted_at    ${long} not null,
  expires_at   ${long} not null,
  used_at      ${long},
  replaced_at  ${long}
)${byKey()};
create index ${index("tokens_build")} on ${table("tokens")} (build);
`;
}

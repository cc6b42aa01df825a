/**
 * Builds, their results, costs and orchestrators. Texts are ordered by their bytes (collation "C"), as on SQLite, whatever the
 * locale of the database is.
 */
export const sql = (s: string): string => `
create sequence ${s}.build as bigint;

-- The row is the lock of its build: it comes before any other row of the build.
create table ${s}.builds (
  key              bigint primary key default nextval('${s}.build'),
  id               text collate "C" not null unique,
  pipeline         text collate "C" not null,
  queue            text not null,
  state            text collate "C" not null check (
                     state in ('PENDING', 'ACTIVE', 'SUCCESS', 'FAILED', 'CRASHED', 'BUDGET_PAUSE', 'ABANDONED')),
  reason           text not null,
  note             text,
  -- The number of its last transition.
  seq              integer not null default 0,
  hash             text not null,
  description      text not null,
  options          text not null,
  -- Money in millionths; null: no limit.
  budget_micros    bigint,
  budget_tokens    bigint,
  spent_micros     bigint not null default 0,
  spent_tokens     bigint not null default 0,
  reserved_micros  bigint not null default 0,
  reserved_tokens  bigint not null default 0,
  approved         boolean not null default false,
  blocked          text,
  refused_micros   bigint not null default 0,
  refused_tokens   bigint not null default 0,
  max_failures     bigint,
  round            integer not null default 0,
  listing          text not null default 'running' check (listing in ('running', 'done', 'failed')),
  open             bigint not null default 0 check (open >= 0),
  failed           bigint not null default 0,
  created_at       bigint not null,
  finished_at      bigint
) with (
  -- Each end of a work item changes its build's row, in place.
  fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
alter sequence ${s}.build owned by ${s}.builds.key;
create index builds_pipeline on ${s}.builds (pipeline, key);
-- A pipeline has one build that has not ended.
create unique index builds_unended on ${s}.builds (pipeline) where state not in ('SUCCESS', 'FAILED', 'ABANDONED');

-- The same transitions as in core; a test compares them.
create function ${s}.refuse_move() returns trigger language plpgsql as
  $$ begin raise exception using errcode = 'check_violation', message = 'a build cannot make this transition'; end $$;
create trigger builds_moves before update of state on ${s}.builds for each row
when (old.state <> new.state and (old.state || '>' || new.state) not in (
  'PENDING>ACTIVE', 'PENDING>ABANDONED',
  'ACTIVE>SUCCESS', 'ACTIVE>FAILED', 'ACTIVE>CRASHED', 'ACTIVE>BUDGET_PAUSE', 'ACTIVE>ABANDONED',
  'CRASHED>ACTIVE', 'CRASHED>ABANDONED',
  'BUDGET_PAUSE>ACTIVE', 'BUDGET_PAUSE>FAILED', 'BUDGET_PAUSE>ABANDONED'))
execute function ${s}.refuse_move();

create table ${s}.build_stages (
  build   bigint not null,
  place   integer not null,
  stage   text collate "C" not null,
  ran     bigint not null default 0,
  cached  bigint not null default 0,
  failed  bigint not null default 0,
  passed  bigint not null default 0,
  open    bigint not null default 0 check (open >= 0),
  primary key (build, stage)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);

-- The orchestrator of each pipeline: one process at a time. Every write of an orchestrator names the token.
create table ${s}.leads (
  pipeline      text collate "C" primary key,
  build         bigint not null,
  token         text not null,
  holder        bigint not null,
  pid           integer not null,
  host          text not null,
  program       text not null,
  program_hash  text not null,
  acquired_at   bigint not null,
  beat_at       bigint not null
) with (fillfactor = 50);

create table ${s}.targets (
  pipeline     text collate "C" not null,
  segment      integer not null,
  path         text collate "C" not null,
  id           text collate "C" not null,
  parent       text collate "C",
  hash         text collate "C" not null,
  fingerprint  text collate "C",
  -- The input of the first stage, here or in an artifact.
  value_hash   text collate "C" not null,
  value_text   text,
  value_file   text collate "C",
  value_size   bigint not null default 0,
  seen         bigint not null,
  done         text collate "C",
  completed        text not null,
  grouping     text collate "C",
  member       text collate "C",
  -- The key of the FAILED result.
  failure      bigint,
  rev          bigint not null,
  primary key (pipeline, segment, path)
) with (
  -- A build changes all of its targets once or more.
  fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
create index targets_children on ${s}.targets (pipeline, segment, parent, path) where parent is not null;
create index targets_groups on ${s}.targets (pipeline, segment, grouping, path)
  where member is not null and grouping is not null;

-- One row for each (build, stage, target) that was run. A result that the target had before and reuses has none. REUSED: a
-- copy of an earlier result, or of another target's. GONE: there is no result from this build on. A success that was replaced
-- in its own build has its negative key as build, because others may have reused it.
create table ${s}.results (
  key          bigint generated always as identity primary key,
  build        bigint not null,
  pipeline     text collate "C" not null,
  stage        text collate "C" not null,
  path         text collate "C" not null,
  target       text collate "C" not null,
  state        text collate "C" not null check (state in ('SUCCESS', 'FAILED', 'REUSED', 'GONE')),
  hash         text collate "C" not null,
  parts        text,
  output_hash  text collate "C" not null,
  output_text  text,
  output_file  text collate "C",
  output_size  bigint not null default 0,
  micros       bigint not null default 0,
  tokens       bigint not null default 0,
  error        text,
  at           bigint not null,
  -- 1: other targets may reuse it.
  shared       bigint not null default 0
) with (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
-- By path, which most look-ups have: an index by the hash alone would write a page for each result.
create index results_context on ${s}.results (pipeline, stage, path, hash, key) where state = 'SUCCESS';
create index results_hash on ${s}.results (hash, key) where state = 'SUCCESS' and shared = 1;
create unique index results_target on ${s}.results (pipeline, stage, path, build);
create index results_failed on ${s}.results (build, key) where state = 'FAILED';

create table ${s}.artifacts (
  build  bigint not null,
  stage  text collate "C" not null,
  path   text collate "C" not null,
  name   text collate "C" not null,
  hash   text collate "C" not null,
  size   bigint not null,
  primary key (build, stage, path, name)
);
create index artifacts_hash on ${s}.artifacts (hash);

-- Work items that have not ended. estimate: reserved for the running attempt; cost: reported by it; charged: cost of earlier
-- attempts.
create table ${s}.work (
  job              bigint primary key,
  build            bigint not null,
  kind             text collate "C" not null check (kind in ('listing', 'stage', 'remove')),
  stage            text collate "C" not null,
  segment          integer not null,
  path             text collate "C" not null,
  estimate_micros  bigint not null default 0,
  estimate_tokens  bigint not null default 0,
  cost_micros      bigint not null default 0,
  cost_tokens      bigint not null default 0,
  charged_micros   bigint not null default 0,
  charged_tokens   bigint not null default 0
) with (
  fillfactor = 70,
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
-- A target is at one stage at a time.
create unique index work_target on ${s}.work (build, segment, path, stage, kind);

create table ${s}.stage_costs (
  pipeline  text collate "C" not null,
  stage     text collate "C" not null,
  attempts  bigint not null,
  micros    bigint not null,
  tokens    bigint not null,
  primary key (pipeline, stage)
) with (fillfactor = 50);

-- Confirmation tokens, hashed.
create table ${s}.tokens (
  hash         text collate "C" primary key,
  build        bigint not null,
  pause        integer not null,
  minted_at    bigint not null,
  expires_at   bigint not null,
  used_at      bigint,
  replaced_at  bigint
);
create index tokens_build on ${s}.tokens (build);
`;

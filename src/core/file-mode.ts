/** What Holdfast creates beside a database is for its owner alone, unless `open({ mode })` or the database's own mode says otherwise. */
export const DEFAULT_FILE_MODE = 0o600;

const PERMISSIONS = 0o666;
const READ = 0o444;

/** The mode of files like one with this mode; execute bits of a folder do not count. */
export function fileModeOf(mode: number): number {
  return mode & PERMISSIONS;
}

/** The mode of a folder with such files: who may read a file may enter its folder. */
export function folderModeOf(fileMode: number): number {
  return fileModeOf(fileMode) | ((fileMode & READ) >> 2);
}

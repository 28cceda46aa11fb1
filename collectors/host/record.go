package host

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

// A jobRecord is the record that Slurm's prolog (deploy/slurm/prolog.sh) writes
// for a job on this host, as root. Unlike the job's environment, its user
// cannot forge it. The SLUID of the job's run is a link to it.
type jobRecord struct {
	job, sluid               string
	user, account, partition string
	gpus                     []string // indices
}

// longestRecord is the maximum size of a record in bytes.
const longestRecord = 4096

// readRecord returns the record of a job in dir, by its number or its SLUID. It
// has a line KEY=VALUE for each known field; unknown keys are ignored. The error
// is fs.ErrNotExist if there is none.
func readRecord(dir, job string) (jobRecord, error) {
	text, err := ReadTrusted(filepath.Join(dir, job), longestRecord)
	if err != nil {
		return jobRecord{}, err
	}
	found := map[string]string{}
	for line := range strings.Lines(string(text)) {
		key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if !ok {
			return jobRecord{}, fmt.Errorf("%s: %.40q is not a line KEY=VALUE", filepath.Join(dir, job), line)
		}
		found[key] = value
	}
	if found["JOB"] != job && (found["SLUID"] != job || !isJob(found["JOB"])) {
		return jobRecord{}, fmt.Errorf("%s: the record is of job %.40q, SLUID %.40q", filepath.Join(dir, job),
			found["JOB"], found["SLUID"])
	}
	return jobRecord{job: found["JOB"], sluid: found["SLUID"], user: field(found["USER"]), account: field(found["ACCOUNT"]), partition: field(found["PARTITION"]),
		gpus: parseIndices(found["GPUS"])}, nil
}

// records returns the records in dir by job, none if there is no such
// directory. The error names the unreadable ones.
func records(dir string) (map[string]jobRecord, error) {
	var failed []error
	all := map[string]jobRecord{}
	for _, name := range list(dir) {
		if !isJob(name) || len(all) >= mostJobs {
			continue // the name of an unfinished record is not a job number
		}
		r, err := readRecord(dir, name)
		if err == nil {
			all[name] = r
		} else if !errors.Is(err, fs.ErrNotExist) { // the job has just ended
			failed = append(failed, err)
		}
	}
	return all, errors.Join(failed...)
}

// isJob reports whether s is a job number.
func isJob(s string) bool { return s != "" && len(s) <= 10 && strings.Trim(s, "0123456789") == "" }

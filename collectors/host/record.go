package host

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

// A jobRecord is what Slurm's prolog (deploy/slurm/prolog.sh) writes of a job
// on this host, as root: unlike the job's environment it is not its user's
// word.
type jobRecord struct {
	user, account, partition string
	gpus                     []string // indices
}

// longestRecord is how many bytes a record may have.
const longestRecord = 4096

// readRecord returns the record of a job in dir, a line KEY=VALUE for each
// thing that is known; keys that nobody knows are left out. The error is
// fs.ErrNotExist where there is none.
func readRecord(dir, job string) (jobRecord, error) {
	text, err := ReadTrusted(filepath.Join(dir, job), longestRecord)
	if err != nil {
		return jobRecord{}, err
	}
	found := map[string]string{}
	for line := range strings.Lines(string(text)) {
		key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if !ok {
			return jobRecord{}, fmt.Errorf("%s: %.40q is no line KEY=VALUE", filepath.Join(dir, job), line)
		}
		found[key] = value
	}
	if found["JOB"] != job {
		return jobRecord{}, fmt.Errorf("%s: it is of job %.40q", filepath.Join(dir, job), found["JOB"])
	}
	return jobRecord{user: field(found["USER"]), account: field(found["ACCOUNT"]), partition: field(found["PARTITION"]), gpus: parseIndices(found["GPUS"])}, nil
}

// records returns the records in dir by job, none where there is no such
// directory. The error says what could not be read.
func records(dir string) (map[string]jobRecord, error) {
	var failed []error
	all := map[string]jobRecord{}
	for _, name := range list(dir) {
		if !isJob(name) || len(all) >= mostJobs {
			continue // the first is true of what the prolog has not finished
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

// isJob reports whether s is the number of a job.
func isJob(s string) bool { return s != "" && len(s) <= 10 && strings.Trim(s, "0123456789") == "" }

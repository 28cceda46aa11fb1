package host

import (
	"regexp"
	"strings"
)

// A batch is how a batch system names the cgroups of its jobs. Only root can
// make a cgroup where the names count: see ParseCgroup.
type batch struct {
	system string
	root   *regexp.Regexp // the group with all jobs
	above  *regexp.Regexp // a group that may be between it and a job's
	job    *regexp.Regexp // a job's group, and the job's name in it
}

// batches are the known batch systems. Slurm's jobs have a kind of their own.
var batches = []batch{
	// job_<number>, or since 26.05 the SLUID, a number in Crockford's base 32. In v1 the user's group is above.
	{KindSlurm, regexp.MustCompile(`^(?:(?:.+_)?slurmstepd\.scope|slurm(?:_.+)?)$`), regexp.MustCompile(`^uid_`),
		regexp.MustCompile(`^(?:job_(\d+)|(s[0-9A-HJKMNP-TV-Z]{13}))$`)},
	// pbs_jobs.service/jobid/7.server in v1, pbs_jobs.service/jobs/7.server in v2; before 2020 pbspro.slice and pbspro.
	{"pbs", regexp.MustCompile(`^(?:pbs_jobs|pbspro)(?:\.service|\.slice)?$`), regexp.MustCompile(`^(?:jobid|jobs)$`),
		regexp.MustCompile(`^(?:(?:pbs_jobs|pbspro)-)?(\d.*?)(?:\.slice)?$`)},
	// condor_<directory of execution>_<slot>: a slot has one job at a time. Its type may have another name for it.
	{"htcondor", regexp.MustCompile(`^htcondor$`), regexp.MustCompile(`^$`),
		regexp.MustCompile(`^condor_.*?_((?:slot|backfill)\d.*?|[A-Za-z]+\d+(?:_\d+)?@.*?)(?:\.service|\.scope|\.slice)?$`)},
	// torque/7.server, in v1
	{"torque", regexp.MustCompile(`^torque(?:\.\d+)?$`), regexp.MustCompile(`^$`), regexp.MustCompile(`^(\d.*)$`)},
	// oar/<user>_<number> in v1, oar.slice/oar-u<uid>.slice/oar-u<uid>-j<number>.slice in v2
	{"oar", regexp.MustCompile(`^oar(?:\.slice)?$`), regexp.MustCompile(`^oar-u\d+\.slice$`),
		regexp.MustCompile(`^(?:.+_(\d+)|oar-u\d+-j(\d+)\.slice)$`)},
	// nomad/<allocation>.<task> in v1, nomad.slice/share.slice/<allocation>.<task>.scope in v2
	{"nomad", regexp.MustCompile(`^nomad(?:\.slice)?$`), regexp.MustCompile(`^(?:share|reserve)\.slice$`),
		regexp.MustCompile(`^([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\..+?)(?:\.scope)?$`)},
	// hadoop-yarn/container_[e<epoch>_]<application>_<attempt>_<number>
	{"yarn", regexp.MustCompile(`^hadoop-yarn$`), regexp.MustCompile(`^$`),
		regexp.MustCompile(`^container_(?:e\d+_)?(\d+_\d+)_\d+_\d+$`)},
	// lsf/<cluster>/job.<number>.<PID>.<time>
	{"lsf", regexp.MustCompile(`^lsf$`), regexp.MustCompile(`.`), regexp.MustCompile(`^job\.(.+?)(?:\.\d+\.\d+)?$`)},
}

// jobIn returns the job, or its step, below a group with all jobs of a batch
// system; false if there is no job.
func jobIn(group string, below []string) (Workload, bool) {
	for _, b := range batches {
		if !b.root.MatchString(group) {
			continue
		}
		if len(below) > 1 && b.above.MatchString(below[0]) && b.name(below) == "" {
			below = below[1:]
		}
		name := b.name(below)
		if name == "" {
			return Workload{}, false
		}
		if b.system != KindSlurm {
			return Workload{Kind: KindJob, Key: key(KindJob, b.system, name)}, true
		}
		return slurm(name, below)
	}
	return Workload{}, false
}

// name returns the name of the job whose cgroup is the first of groups; empty
// if there is none. A group of Slurm's with steps in it is a job's, whatever
// its name.
func (b *batch) name(groups []string) string {
	if len(groups) == 0 {
		return ""
	}
	if m := b.job.FindStringSubmatch(groups[0]); m != nil {
		return strings.Join(m[1:], "")
	}
	if b.system == KindSlurm && len(groups) > 1 && strings.HasPrefix(groups[1], "step_") {
		return groups[0]
	}
	return ""
}

// slurm returns the step of a job whose cgroup is the first of groups. The step
// may be missing. A step's group slurm has Slurm's own daemon, slurmstepd,
// which belongs to no job.
func slurm(job string, groups []string) (Workload, bool) {
	if len(groups) > 2 && groups[2] == "slurm" {
		return Workload{}, false
	}
	w := Workload{Kind: KindSlurm, Job: field(job)}
	if job == groups[0] {
		w.SLUID = w.Job
	}
	if len(groups) > 1 {
		if step, ok := strings.CutPrefix(groups[1], "step_"); ok {
			w.Step = field(step)
		}
	}
	w.Key = stepKey(job, w.Step)
	return w, true
}

// stepKey returns the key of a step of a Slurm job, or without a step of the
// job.
func stepKey(job, step string) string {
	if step == "" {
		return key(KindSlurm, job)
	}
	return key(KindSlurm, job+"."+step)
}

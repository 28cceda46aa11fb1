package policy_test

import (
	"fmt"
	"testing"
	"time"

	"gpusteward/enforcer/policy"
	"gpusteward/internal/quota"
)

// jobs returns a table with a tenant for each of n Slurm jobs, as
// deploy/slurm/prolog.sh writes them: four on a GPU.
func jobs(n int) policy.Table {
	steps := policy.Steps{Mode: policy.Warn, Confirm: 3, Of: 5, Hold: time.Minute, Throttle: .5,
		Pause: []string{"broker"}}
	table := policy.Table{Default: policy.Terms{Priority: policy.PriorityNormal,
		Quota: policy.Quota{Limit: 1, Bandwidth: 1}}, Steps: steps}
	var quarter quota.Written
	for _, key := range []string{"guarantee", "limit", "memory"} {
		if err := quarter.Set(key, "25 %"); err != nil {
			panic(err)
		}
	}
	for i := range n {
		job := fmt.Sprint("slurm:", 4711000+i)
		table.Rules = append(table.Rules, policy.Rule{
			Name: fmt.Sprint("slurm-", 4711000+i), Select: []policy.Selector{{Workloads: []string{job, job + ".*"}}},
			Binding: true, Steps: steps,
			Terms: policy.Terms{Priority: policy.PriorityNormal,
				Quota: policy.Quota{Limit: .01, Memory: 1 << 20, Bandwidth: 1}},
			GPUs: []policy.Override{{GPUs: []string{fmt.Sprint(i / 4)}, Written: quarter}},
		})
	}
	return table
}

// BenchmarkJobs checks the tenants of the highest permitted number of jobs.
func BenchmarkJobs(b *testing.B) {
	table := jobs(256)
	for b.Loop() {
		if err := table.Check(); err != nil {
			b.Fatal(err)
		}
	}
}

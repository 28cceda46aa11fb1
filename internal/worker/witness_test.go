package worker

import (
	"path/filepath"
	"strconv"
	"testing"

	"gpusteward/internal/fixture"
)

// TestAWitness looks at a child that no signal ends while it reads, and as often at the threads
// of this process, which run, or wait for each other, however long.
func TestAWitness(t *testing.T) {
	path, stuck, letGo := fixture.Stuck(t, nil)
	c := kind(1, 1).child(Order{Args: []string{"stuck", path, "1"}})
	fixture.Must(t, c.Start())
	t.Cleanup(func() { letGo(); _ = c.Wait() })
	fixture.Eventually(t, "it reads", func() bool { return stuck() == 1 })
	_ = c.Process.Kill()
	go func() {
		for t.Context().Err() == nil {
		}
	}()
	seen := map[string]*Witness{}
	looks := func(pid string) (held bool, most int) {
		tasks, _ := filepath.Glob("/proc/" + pid + "/task/*")
		for _, task := range tasks {
			if seen[task] == nil {
				seen[task] = &Witness{}
			}
			held = seen[task].Held(task) || held
			most = max(most, seen[task].looks)
		}
		return held, most
	}
	fixture.Eventually(t, "the kernel holds it", func() bool {
		if held, _ := looks("self"); held {
			t.Fatal("this process is held")
		}
		held, most := looks(strconv.Itoa(c.Process.Pid))
		fixture.Equal(t, held, most >= enough, "it is held after %d looks:", most)
		return held
	})
}

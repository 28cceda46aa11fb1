package incident

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

func TestEntitiesAreParsedInAnyForm(t *testing.T) {
	for text, want := range map[string]Entity{
		"node":                             {},
		"3":                                {GPU: "3"},
		"gpu=3":                            {GPU: "3"},
		"gpu=3,link=7":                     {GPU: "3", Link: "7"},
		"uuid=GPU-x,link=0":                {UUID: "GPU-x", Link: "0"},
		"GPU-5b6d":                         {UUID: "GPU-5b6d"},
		"workload=slurm/17":                {Workload: "slurm/17"},
		"gpu=0,workload=pod a,b=c":         {GPU: "0", Workload: "pod a,b=c"},
		"device=mlx5_0/1":                  {Device: "mlx5_0/1"},
		"gpu=0,tenant=a":                   {GPU: "0", Tenant: "a"},
		"tenant=a,b,workload=unit/x":       {Tenant: "a,b", Workload: "unit/x"},
		"gpu=0,uuid=GPU-x,link=1":          {GPU: "0", UUID: "GPU-x", Link: "1"},
		"gpu=11,workload=unit/a@b=c.slice": {GPU: "11", Workload: "unit/a@b=c.slice"},
	} {
		got, err := ParseEntity(text)
		fixture.If(t, err != nil || got != want, "%q: %+v, %v; want %+v", text, got, err, want)
	}
	for text, want := range map[string]string{
		"":             `"" is not a part`,
		"Node":         `"Node" is not a part`,
		"-1":           `"-1" is not a part`,
		"03":           `"03" is not a part`,
		"gpu=x":        "gpu is an index",
		"gpu=03":       "gpu is an index",
		"gpu=3,gpu=4":  "gpu is given twice",
		"tenant=":      "tenant is empty",
		"gpu=3,link=":  "link is empty",
		"link=7":       "a link belongs to a GPU",
		"GPU-x,link=1": `"GPU-x" is not a part`,
	} {
		if got, err := ParseEntity(text); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "gpu=3,link=7") {
			t.Errorf("%q: %+v, %v; want an error with %q and what it may be", text, got, err, want)
		}
	}
}

// FuzzParseEntity holds that a parsed entity is the same after it is formatted and parsed again.
func FuzzParseEntity(f *testing.F) {
	for _, s := range []string{"node", "3", "gpu=3,link=7", "GPU-x", "workload=a,b", "tenant=a,workload=b",
		"uuid=GPU-x", "device=a,device=b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e, err := ParseEntity(s)
		if err != nil {
			return
		}
		again, err := ParseEntity(e.String())
		if e.GPU != "" {
			e.UUID = "" // String leaves it out
		}
		if err != nil || again != e {
			t.Errorf("%q: %+v is written %q, read as %+v, %v", s, e, e.String(), again, err)
		}
	})
}

func TestEntitiesInASentence(t *testing.T) {
	for want, e := range map[string]Entity{
		"the node":                    {},
		"GPU 3":                       {GPU: "3", UUID: "GPU-x"},
		"link 7 of GPU 3":             {GPU: "3", Link: "7"},
		"pod/a on GPU 3":              {GPU: "3", Workload: "pod/a"},
		"pod/a":                       {Workload: "pod/a"},
		"tenant ml on GPU 3":          {GPU: "3", Tenant: "ml"},
		"pod/a of tenant ml on GPU 3": {GPU: "3", Tenant: "ml", Workload: "pod/a"},
		"pod/a of tenant ml":          {Tenant: "ml", Workload: "pod/a"},
		"mlx5_0/1":                    {Device: "mlx5_0/1"},
	} {
		fixture.Equal(t, e.Name(), want, "%+v is", e)
	}
}

func TestEventsSurviveJSON(t *testing.T) {
	e := Event{Version: EventVersion, ID: "a", Kind: KindIncident, Entity: Entity{GPU: "3", UUID: "GPU-x", Link: "7"},
		Severity: Critical, From: OK, To: Unhealthy}
	text, back := fixture.Value(json.Marshal(e))(t), Event{}
	fixture.Contains(t, string(text), `"severity":"critical","from":"ok","to":"unhealthy"`, "the event")
	fixture.Must(t, json.Unmarshal(text, &back))
	fixture.If(t, back.Severity != Critical || back.To != Unhealthy || back.Entity != e.Entity,
		"%s is read as %+v", text, back)
	fixture.Fails(t, json.Unmarshal([]byte(`{"severity":"bad"}`), &back), "emergency", "a severity that is none")
}

func TestEntitiesArePrintedReadably(t *testing.T) {
	for want, e := range map[string]Entity{"node": {}, "gpu=3": {GPU: "3", UUID: "GPU-x"}, "gpu=3,link=7": {GPU: "3",
		Link: "7"}, "uuid=GPU-x": {UUID: "GPU-x"}, "device=mlx5_0/1": {Device: "mlx5_0/1"}} {
		fixture.Equal(t, e.String(), want, "%+v is written", e)
	}
	fixture.Equal(t, slices.IsSortedFunc([]Entity{{}, {GPU: "9"}, {GPU: "10", UUID: "a"}, {GPU: "10", UUID: "b"},
		{GPU: "10", UUID: "b", Link: "9"}, {GPU: "10", UUID: "b", Link: "10"}}, Entity.Compare), true, "in this order they are sorted:")
}

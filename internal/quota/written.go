package quota

import (
	"fmt"
	"slices"
	"strings"
)

// Written is the written part of a quota: some of its terms. Its zero value has
// none.
type Written struct {
	quota Quota
	terms []*Term // those in quota
}

// Set reads the value of a key, which is one of Keys.
func (w *Written) Set(key, text string) error {
	t := Find(key)
	if t == nil {
		return fmt.Errorf("%q is not a term of a quota: the terms are %s", key, strings.Join(Keys(), ", "))
	}
	if err := t.At(&w.quota).UnmarshalText([]byte(text)); err != nil {
		return err
	}
	if !slices.Contains(w.terms, t) {
		w.terms = append(w.terms, t)
	}
	return nil
}

// Over returns q with the written terms in place of its own.
func (w Written) Over(q Quota) Quota {
	for _, t := range w.terms {
		t.At(&q).take(t.At(&w.quota))
	}
	return q
}

package domain

// links are a slot's neighbours in a list, by id: no pointer that a collector would follow.
type links struct{ prev, next SlotID }

// slotList is slots in order, the oldest first, linked through the records themselves.
type slotList struct {
	of          func(*record) *links // which of a record's links this list uses
	first, last SlotID
	n           int
}

func byOrder(r *record) *links { return &r.order }
func byHold(r *record) *links  { return &r.held }

func (t *Table) pushBack(l *slotList, id SlotID) { t.insertAfter(l, l.last, id) }

// insertAfter puts id behind prev, or first when prev is zero.
func (t *Table) insertAfter(l *slotList, prev, id SlotID) {
	next := l.first
	if prev != 0 {
		next = l.of(t.slot(prev)).next
	}
	*l.of(t.slot(id)) = links{prev, next}
	*t.nextLink(l, prev) = id
	*t.prevLink(l, next) = id
	l.n++
}

// unlink takes id out. Precondition: it is in l.
func (t *Table) unlink(l *slotList, id SlotID) {
	at := l.of(t.slot(id))
	*t.nextLink(l, at.prev) = at.next
	*t.prevLink(l, at.next) = at.prev
	*at = links{}
	l.n--
}

// nextLink is where the list keeps what follows id; zero stands for the list's own beginning.
func (t *Table) nextLink(l *slotList, id SlotID) *SlotID {
	if id == 0 {
		return &l.first
	}
	return &l.of(t.slot(id)).next
}

// prevLink is where the list keeps what precedes id; zero stands for the list's own end.
func (t *Table) prevLink(l *slotList, id SlotID) *SlotID {
	if id == 0 {
		return &l.last
	}
	return &l.of(t.slot(id)).prev
}

// after is the slot that follows id in l, or zero.
func (t *Table) after(l *slotList, id SlotID) SlotID { return l.of(t.slot(id)).next }

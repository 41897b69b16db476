"""Golden bits of the engine: record (before) or compare (after). usage: golden.py record|compare FILE"""
import sys, json, hashlib, dataclasses, tempfile, os, time
import numpy as np, torch
torch.set_num_threads(1)
os.environ["FEDLIB_RUNS"]=tempfile.mkdtemp()
os.environ["FEDLIB_RESULTS"]=tempfile.mkdtemp()
from fedlib.values import to_dict, from_dict
try:
    from fedlib.experiment import run_with_state
    from fedlib.recipes.plan import planned
except ImportError:
    from fedlib.runs import run_with_state
    planned=None
import importlib
for m in ("companion","papers","papers.book"):
    try: importlib.import_module(m)
    except ImportError: pass
def cut(e):
    after,beside=(s and cut(s) for s in (e.after,e.beside))
    alg=e.algorithm
    if getattr(alg,"epochs",1)>3: alg=dataclasses.replace(alg,epochs=3)
    r=min(e.rounds,3)
    return dataclasses.replace(e,rounds=r,evaluate_every=min(e.evaluate_every,2),after=after,beside=beside,algorithm=alg)
def chosen():
    seen={}
    for p in planned("quick"):
        e=p.experiment
        if e.seed: continue
        d=to_dict(e.algorithm); 
        kind=(type(e.algorithm).__name__, tuple(sorted(k for k in d)), type(getattr(e.algorithm,"of",None)).__name__, type(e.task.partition).__name__, e.keep, e.audit, p.section if type(e.algorithm).__name__ in ("FedAvg","Local") else "")
        seen.setdefault(kind,cut(e))
    uniq={e.key:e for e in seen.values()}
    return list(uniq.values())
def digest(e):
    res,state=run_with_state(e,progress=False)
    h=hashlib.sha256()
    rank=lambda n:{"shared":0,"local":1}.get(n.partition(":")[0],2)
    for n,t in sorted(((n.partition(":")[2],t,rank(n)) for n,t in state.flat().items()),key=lambda p:(p[0],p[2])) if False else [(a,b) for a,b,_ in sorted(((n.partition(":")[2],t,rank(n)) for n,t in state.flat().items()),key=lambda p:(p[0],p[2]))]:
        h.update(n.encode()); h.update(t.detach().cpu().contiguous().numpy().tobytes())
    m=res.metrics
    if not hasattr(m,"columns") or not hasattr(m,"to_csv"): m=m.to_pandas()
    m=m[["round","metric","client","expert","item","value"]].sort_values(["round","metric","client","expert","item"],kind="stable")
    mh=hashlib.sha256(m.to_csv(index=False,float_format="%.17g").encode()).hexdigest()
    return h.hexdigest()[:16],mh[:16]
if __name__=="__main__":
    what,file=sys.argv[1:3]
    if what=="record":
        out=[]; t=time.time()
        for e in chosen():
            s,m=digest(e); out.append({"spec":to_dict(e),"key":e.key,"state":s,"metrics":m}); print(e.key,type(e.algorithm).__name__,s,m,round(time.time()-t),flush=True)
        keys={sc:sorted([[p.section,p.dataset,p.experiment.seed,p.experiment.key] for p in planned(sc)]) for sc in ("quick","standard","paper")}
        json.dump({"runs":out,"keys":keys},open(file,"w"))
    else:
        d=json.load(open(file)); bad=0
        pick=sys.argv[3:] 
        for r in d["runs"]:
            if pick and not any(p in json.dumps(r["spec"]) for p in pick): continue
            try:
                e=from_dict(r["spec"]); ok=e.key==r["key"]; s,m=digest(e)
            except Exception as x: print("ERROR",r["key"],r["spec"]["algorithm"]["kind"],type(x).__name__,str(x)[:200],flush=True); bad+=1; continue
            if not ok or s!=r["state"] or m!=r["metrics"]:
                bad+=1; print("DIFFERS",r["key"],r["spec"]["algorithm"]["kind"],"key" if not ok else "", "state" if s!=r["state"] else "","metrics" if m!=r["metrics"] else "",flush=True)
        print(len(d["runs"]),"runs,",bad,"differ")
